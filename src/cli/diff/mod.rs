//! `bottle diff`: shows the changes in a bottle's workspace, or how two bottles' workspaces differ ([`between`]).

mod between;

use std::path::PathBuf;

use bottle_channel::Channel;
use bottle_contract::names::Slug;

use crate::backend::Access;
use crate::cli::completions;
use crate::cli::connect::connect_or_open_files;
use crate::cli::error::CliError;
use crate::cli::exit;
use crate::cli::git::{BottleGit, Compared, LeftOut, ObjectId, Repository, Scratch};
use crate::cli::json_schema;
use crate::cli::output::{Output, Styles, counted, inert, one_line};
use crate::cli::progress;
use crate::cli::pull::record;
use crate::host::Host;
use crate::instance::record::Record;

/// Show all changes in a bottle's workspace: committed, uncommitted and new files
///
/// Also works after the bottle ended, if its files are preserved.
///
/// Compares with the last commit that the bottle shares with your repository. If there is none, compares with
/// your `HEAD` if the workspace was copied from it, otherwise with the bottle's last commit. Your own git
/// makes the diff, and ignores git attributes and configuration from the bottle.
///
/// With a second bottle, shows what its workspace has that the first one's has not, for example in a fork.
#[derive(Debug, clap::Args)]
pub(crate) struct Diff {
    /// The bottle, as `bottle list` shows it
    #[arg(add = completions::with_files())]
    slug: Slug,
    /// Compare with the workspace of this bottle instead of a commit
    #[arg(value_name = "OTHER", add = completions::with_files())]
    other: Option<Slug>,
}

impl Diff {
    pub(crate) fn run(self, host: &Host, output: &Output) -> Result<u8, CliError> {
        crate::cli::block_on(async {
            match &self.other {
                Some(other) => between::show(&self.slug, other, host, output).await,
                None => self.show(host, output).await.map_err(|error| error.about_if_unset(&self.slug)),
            }
        })
    }

    async fn show(&self, host: &Host, output: &Output) -> Result<u8, CliError> {
        let record = record(host, &self.slug).await?;
        let channel = connect_or_open_files(host, &self.slug, Access::Read).await?;
        let comparing = async |_| self.compare(host, &record, &channel, output).await;
        let compared = progress::with_progress("comparing", "nothing was changed", output, comparing).await?;
        let Compared { base, diff, committed, left_out } = compared;
        let (text, aside) = (String::from_utf8_lossy(&diff.bytes), String::from_utf8_lossy(&committed.bytes));
        let cut = diff.cut || committed.cut;
        if output.json {
            warn_left_out(&left_out, "compared", output);
            output.print_json(&json_schema::Difference {
                slug: self.slug.to_string(),
                other: None,
                base: base.commit.map(|base| base.as_str().to_owned()),
                diff: text.into_owned(),
                committed: aside.into_owned(),
                cut,
            })?;
            return Ok(exit::DONE);
        }
        if text.is_empty() {
            output.note("the workspace has no changes");
        } else {
            output.print(&colorize(&text, output.styles()))?;
        }
        if !aside.is_empty() {
            output.warn(
                "the bottle's last commit, which `bottle pull` fetches, differs from the workspace here:",
            );
            output.print(&colorize(&aside, output.styles()))?;
        }
        warn_left_out(&left_out, "compared", output);
        if cut {
            output.warn("the diff is truncated; `bottle pull` fetches all commits");
        }
        Ok(exit::DONE)
    }

    async fn compare(
        &self,
        host: &Host,
        record: &Record,
        channel: &Channel,
        output: &Output,
    ) -> Result<Compared, CliError> {
        let folder = if record.copied_cwd { &record.cwd } else { &host.cwd };
        // Without a repository on the host, the base is the bottle's last commit.
        let own = Repository::containing(host, folder).await.ok().flatten();
        let head = match &own {
            Some(own) => own.head().await?,
            None => None,
        };
        let workspace = BottleGit { channel, slug: &self.slug }.workspace().await;
        let like = head.clone().or_else(|| workspace.as_ref().ok()?.head.clone());
        let scratch = Scratch::create(host, own.as_ref(), like.as_ref()).await?;
        let fetched = match workspace {
            Ok(_) => scratch.fetch(&self.slug).await,
            Err(error) => Err(error),
        };
        let tip = match fetched {
            Ok(tip) => tip,
            // The workspace's files can be compared with the user's `HEAD` even without the bottle's history.
            Err(error) if record.copied_cwd && head.is_some() => {
                output.warn(format!("the bottle's history is ignored: {}", inert(&error.message)));
                None
            }
            Err(error) => return Err(error),
        };
        let base =
            scratch.base(head.as_ref(), tip.as_ref(), own.as_ref().filter(|_| record.copied_cwd)).await?;
        if base.is_own && base.commit != head {
            let commit = base.commit.as_ref().map_or("", ObjectId::short);
            output.note(format!("compared with {commit}, the last commit shared with your repository"));
        }
        scratch.compare(channel, &self.slug, own.as_ref(), base, tip.as_ref()).await
    }
}

/// Warns about files that were not compared or pulled, because an agent can cause files to be left out.
pub(in crate::cli) fn warn_left_out(left_out: &LeftOut, verb: &str, output: &Output) {
    let name = |path: &PathBuf| one_line(&path.display().to_string());
    let files = |count: u64| counted(count, "file");
    let mut ignored: Vec<String> =
        left_out.ignored.iter().map(|(path, count)| format!("{} ({})", name(path), files(*count))).collect();
    if left_out.more_ignored > 0 {
        ignored.push(format!("{} more", files(left_out.more_ignored)));
    }
    if !ignored.is_empty() {
        output
            .warn(format!("left out by ignore rules that exist only in the bottle: {}", ignored.join(", ")));
    }
    for (path, why) in &left_out.places {
        output.warn(format!("{} was not {verb}: {why}", name(path)));
    }
    if left_out.more > 0 {
        output.warn(format!("{} more paths were not {verb}", left_out.more));
    }
}

/// Escapes the diff for the terminal, and colours it if colours are on.
fn colorize(text: &str, styles: Styles) -> String {
    let line = |line: &str| {
        let shown = inert(line);
        match line.as_bytes() {
            [b'+', b'+', b'+', ..] | [b'-', b'-', b'-', ..] | [b'd', b'i', b'f', b'f', ..] => {
                styles.bold(&shown)
            }
            [b'+', ..] => styles.green(&shown),
            [b'-', ..] => styles.red(&shown),
            [b'@', ..] => styles.cyan(&shown),
            _ => shown,
        }
    };
    // Splits at line feeds only, so that a changed carriage return remains visible.
    text.strip_suffix('\n').unwrap_or(text).split('\n').map(line).collect::<Vec<_>>().join("\n")
}
