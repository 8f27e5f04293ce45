"""`cloudgpu train`: run a recipe from plan to bill.

Training needs most of cloudgpu, so this module contains only the options, and `train_run.py` the rest.
"""

from cloudgpu.cli.commands.option_groups import with_option_groups
from cloudgpu.cli.commands.train_options import TrainOptions
from cloudgpu.cli.lazy import Deferred

_run_training: Deferred[[TrainOptions], None] = Deferred("cloudgpu.cli.commands.train_run.run_training")


@with_option_groups
def train(options: TrainOptions) -> None:
    """Run a recipe: create a cluster, train, then delete it.

    Plans the run, asks for confirmation, launches the nodes, uploads the code, trains, downloads the outputs, deletes
    the cluster and prints the cost. A cluster that already existed is not deleted. To resume an interrupted matrix, run
    the same command again.
    """
    # Before the slow imports, because this is the most common mistake.
    options.source.require_recipe(options.recipe)
    _run_training(options)
