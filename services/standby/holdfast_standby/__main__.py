from holdfast_standby.main import main

main()
