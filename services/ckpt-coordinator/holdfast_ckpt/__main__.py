from holdfast_ckpt.main import main

main()
