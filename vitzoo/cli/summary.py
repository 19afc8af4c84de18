"""The command `vitzoo summary`."""

from __future__ import annotations

from dataclasses import asdict
from typing import Any

import click

from vitzoo.cli.completion import complete_names
from vitzoo.cli.networks import check
from vitzoo.cli.options import (
    flag,
    json_option,
    size_option,
)
from vitzoo.cli.output import echo, megabytes, on_terminal, print_json, print_rows


@click.command("summary")
@click.argument("name", shell_complete=complete_names)
@size_option
@click.option("--num-classes", type=int, help="Number of classes; 0 for a network without a head.")
@click.option("--in-chans", type=int, help="Number of image channels.")
@click.option("--patch-embed", metavar="NAME", help="Patch embedder, such as conv or unfold.")
@click.option("--pos-embed", metavar="NAME", help="Position embedding, such as learned or rope.")
@click.option(
    "--pool", metavar="NAME", help="Use the registered pool of this name, such as class or mean."
)
@click.option(
    "--head", metavar="NAME", help="Use the registered head of this name, such as linear or mlp."
)
@click.option(
    "--batch-size",
    type=click.IntRange(1, 65_536),
    default=1,
    show_default=True,
    help="Images per batch.",
)
@flag("--all", "every", help="Show the layers of every block, not only of one.")
@json_option
def summary_command(
    name: str, batch_size: int, every: bool, as_json: bool, **arguments: Any
) -> None:
    """Show the layers of a network: shapes, operations and memory.

    NAME is a variant, VARIANT:WEIGHTS, a path (also of a spec) or hf://OWNER/REPO: see
    docs/create.md#which-network. The options change the network. No weights are loaded and no
    memory is allocated for parameters.

    \b
    Examples:
      vitzoo summary vit_b16
      vitzoo summary vit_b16:augreg_in21k
      vitzoo summary vit_b16 --image-size 256
      vitzoo summary vit_b16 --image-size 224x336
      vitzoo summary vit_h14 --all --json
    """
    check(name)
    from vitzoo.known import summary as summary_of

    summary = summary_of(name, batch_size=batch_size, **arguments)
    if as_json:
        print_json(summary)
        return
    layers = [
        {"layer": layer.name, "kind": layer.kind, "params": layer.params}
        | {"output": "x".join(map(str, layer.output)) or None}
        for layer in (summary.layers if every else summary.outside_later_blocks)
    ]
    print_rows(layers, ("layer", "kind", "output", "params"))
    echo()
    terms = [asdict(term) | {"sum": term.weights + term.biases} for term in summary.terms]
    columns = ("weights", "biases", "sum")
    terms.append({"name": "total"} | {key: sum(term[key] for term in terms) for key in columns})
    print_rows(terms, ("name", *columns))
    echo()
    title = "without biases and norms"
    print_rows([{title: name, "weights": n} for name, n in summary.by_hand], (title, "weights"))
    echo()
    macs = summary.flops // 2
    if on_terminal():
        echo(
            f"{macs / 10**9:.4g} GMACs, peak memory of activations: "
            f"{megabytes(summary.activations)} in fp32"
        )
        return
    costs = {"matmul FLOPs": summary.flops, "MACs": macs, "activation bytes": summary.activations}
    echo("\t".join(f"{what}: {n}" for what, n in costs.items()))
