from holdfast_analyzer.main import main

main()
