"""Names for types that argparse keeps private."""

import argparse

Commands = argparse._SubParsersAction[argparse.ArgumentParser]
