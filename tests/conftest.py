"""What holds for every test."""

import signal

# Whoever runs the tests may ignore these (nohup does, and a shell for what it puts in the background), which every
# process that a test starts would inherit.
for signum, handler in ((signal.SIGINT, signal.default_int_handler), (signal.SIGHUP, signal.SIG_DFL)):
    if signal.getsignal(signum) is signal.SIG_IGN:
        signal.signal(signum, handler)
