"""The command `vitzoo site`; torch-free."""

from __future__ import annotations

from pathlib import Path

import click

from vitzoo.cli import PATH, json_option, print_rows, say
from vitzoo_site import TITLE, write_site

COLUMNS = ("index", "variants", "weights", "files", "bytes", "removed")


@click.command("site")
@click.argument("out", metavar="OUT", type=PATH)
@click.option("--title", default=TITLE, show_default=True, help="Title of the catalogue.")
@click.option(
    "--force",
    is_flag=True,
    help="Write into a folder with other files; overwrite those with names of pages.",
)
@json_option
def site_command(out: Path, title: str, force: bool, as_json: bool) -> None:
    """Write a web site of all networks and weights to the folder OUT.

    The site has one page to search, filter, sort and plot all entries, and a page for each
    network. It shows vitzoo, every installed plugin and the files of VITZOO_REGISTRY. Open
    OUT/index.html in a browser, or copy OUT to any web server. The pages request nothing from
    other servers.

    A site in OUT is replaced: pages of names that no longer exist are removed. Other files in OUT
    stay. The command refuses a folder that has only other files. A plugin that has failed is named
    on stderr, and the site is written without it. The same registry gives the same bytes.

    \b
    Examples:
      vitzoo site catalogue
      vitzoo site public --title "Models of Acme"
      VITZOO_PLUGINS=site vitzoo site core  # of vitzoo alone
    """
    site = write_site(out, title=title, force=force)
    for info in site.failed:
        say(f"vitzoo: plugin {info.namespace!r} has failed: {info.trouble}")
    for path in site.kept:
        say(f"vitzoo: {out / path} is no longer part of the site, but was changed; it stays")
    print_rows([site], COLUMNS, as_json=as_json)
