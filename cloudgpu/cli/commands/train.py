"""`cloudgpu train`: run a recipe from plan to bill.

This module imports `train_run.py`, which needs most of cloudgpu, only when training starts.
"""

from cloudgpu.cli.options import with_option_groups
from cloudgpu.cli.train_options import TrainOptions


@with_option_groups
def train(options: TrainOptions) -> None:
    """Run a recipe: create a cluster, train, then delete it.

    Plans the run, asks for confirmation, launches the nodes, uploads the code, trains, downloads the outputs, deletes
    the cluster and prints the cost. A cluster that already existed is not deleted. To resume an interrupted matrix, run
    the same command again.
    """
    # Report the most common mistake before the slow imports.
    options.source.require_recipe(options.recipe)
    from cloudgpu.cli.commands.train_run import run_training  # noqa: PLC0415 - see the module

    run_training(options)
