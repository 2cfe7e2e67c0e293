"""`python -m loopscope` is `loopscope`; `torchrun -m loopscope measure …` starts one process for each GPU."""

from loopscope.cli import main

if __name__ == "__main__":
    main()
