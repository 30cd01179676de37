from holdfast.daemon.quick_imports import quick_imports

with quick_imports():
    from holdfast_ckpt.main import main

main()
