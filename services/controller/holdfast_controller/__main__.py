from holdfast_controller.main import main

main()
