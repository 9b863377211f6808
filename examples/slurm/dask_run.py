# SPDX-License-Identifier: BSD-3-Clause
"""A night on a Dask cluster that runs already, as from a notebook: the client that is current is used, and stays open.

python examples/slurm/dask_run.py tcp://node01:8786 pairs.ecsv OUT
"""

import sys

from distributed import Client

import skydelta


def main(address: str, table: str, out: str) -> int:
    with Client(address) as client, client.as_current():
        result = skydelta.run("difference", {"table": table}, out=out, executor="dask")
    sys.stdout.writelines(f"{outcome.id} {outcome.status}\n" for outcome in result.outcomes)
    return int(result.exit_code)


if __name__ == "__main__":
    sys.exit(main(*sys.argv[1:4]))
