from holdfast.cli.main import main

main(prog_name="holdfast")
