from ube.cli import main

main()
