from holdfast_historian.main import main

main()
