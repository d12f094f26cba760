//! `bottle diff`: what changed in a bottle's workspace.

use bottle_contract::names::Slug;

use super::completions;
use super::connect::connect;
use super::error::CliError;
use super::exit;
use super::git::{Inside, Repository};
use super::output::{Ink, Output, inert};
use super::pull::running;
use super::shapes;
use crate::host::Host;

/// Show what changed in a bottle's workspace: commits, changes and new files in one
///
/// Since the commit that your repository is at, as far as the bottle knows it; else since the bottle's own last
/// commit.
#[derive(Debug, clap::Args)]
pub(crate) struct Diff {
    /// The bottle, as `bottle list` names it
    #[arg(add = completions::running())]
    slug: Slug,
}

impl Diff {
    pub(crate) fn run(self, host: &Host, output: &Output) -> Result<u8, CliError> {
        super::block_on(self.show(host, output))
            .map_err(|error| if error.subject.is_none() { error.about(&self.slug) } else { error })
    }

    async fn show(&self, host: &Host, output: &Output) -> Result<u8, CliError> {
        let record = running(host, &self.slug).await?;
        let channel = connect(host, &self.slug).await?;
        let workspace = Inside { channel: &channel, slug: &self.slug }.workspace().await?;
        let folder = if record.copied_cwd { &record.cwd } else { &host.cwd };
        // Without a repository here the bottle's own last commit is what is compared with.
        let here = match Repository::around(host, folder).await {
            Ok(Some(repository)) => repository.head().await?,
            Ok(None) | Err(_) => None,
        };
        let left = match (&here, &workspace.head) {
            (Some(here), Some(_)) => workspace.left(here).await?,
            _ => None,
        };
        let base = left.or_else(|| workspace.head.clone());
        let said = workspace.diff(base.as_ref()).await?;
        let text = String::from_utf8_lossy(&said.output);
        if output.json {
            output.print_json(&shapes::Difference {
                slug: self.slug.to_string(),
                base: base.map(|base| base.as_str().to_owned()),
                diff: text.into_owned(),
                cut: said.cut,
            })?;
            return Ok(exit::DONE);
        }
        if text.is_empty() {
            output.note("nothing changed in the workspace");
        } else {
            output.print(&shown(&text, output.ink()))?;
        }
        if said.cut {
            output.warn("there is more than is shown; `bottle pull` takes what was committed");
        }
        Ok(exit::DONE)
    }
}

/// Inert, and in colours where there are any.
fn shown(text: &str, ink: Ink) -> String {
    let line = |line: &str| {
        let shown = inert(line);
        match line.as_bytes() {
            [b'+', b'+', b'+', ..] | [b'-', b'-', b'-', ..] | [b'd', b'i', b'f', b'f', ..] => {
                ink.bold(&shown)
            }
            [b'+', ..] => ink.green(&shown),
            [b'-', ..] => ink.red(&shown),
            [b'@', ..] => ink.cyan(&shown),
            _ => shown,
        }
    };
    text.lines().map(line).collect::<Vec<_>>().join("\n")
}
