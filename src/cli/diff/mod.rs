//! `bottle diff`: shows the changes in a bottle's workspace, or how two bottles' workspaces differ ([`between`]).

mod between;

use std::io::{IsTerminal, Write};
use std::path::PathBuf;

use bottle_contract::names::Slug;

use crate::backend::Access;
use crate::cli::completions;
use crate::cli::connect::connect_or_open_files;
use crate::cli::error::CliError;
use crate::cli::exit;
use crate::cli::git::{Compared, Content, Form, LeftOut, Text, Work};
use crate::cli::json_schema;
use crate::cli::output::{Output, Styles, counted, inert, one_line, write_failed};
use crate::cli::progress;
use crate::cli::pull::record;
use crate::host::Host;

/// Show all changes in a bottle's workspace: committed, uncommitted and new files
///
/// Also works after the bottle ended, if its files are preserved.
///
/// Compares with the last commit that the bottle shares with your repository. If there is none, compares with
/// your `HEAD` if the workspace was copied from it, otherwise with the bottle's last commit. Your own git
/// makes the diff, and ignores git attributes and configuration from the bottle.
///
/// If standard output is not a terminal, prints a patch that `git apply` takes, with binary files, in the root of
/// the repository. The patch contains the bytes of the files, so a terminal should not show it unescaped.
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
    /// Show only the number of changed lines of each file
    #[arg(long, conflicts_with = "name_only")]
    stat: bool,
    /// Show only the paths of the changed files
    #[arg(long)]
    name_only: bool,
}

impl Diff {
    pub(crate) fn run(self, host: &Host, output: &Output) -> Result<u8, CliError> {
        crate::cli::block_on(async {
            match &self.other {
                Some(other) => between::show(&self.slug, other, self.form(output), host, output).await,
                None => self.show(host, output).await.map_err(|error| error.about_if_unset(&self.slug)),
            }
        })
    }

    /// On a terminal, the diff is for reading.
    fn form(&self, output: &Output) -> Form {
        match (self.stat, self.name_only) {
            (true, _) => Form::Stat,
            (_, true) => Form::NameOnly,
            _ if output.json => Form::BoundedPatch,
            _ if std::io::stdout().is_terminal() => Form::Text,
            _ => Form::Patch,
        }
    }

    async fn show(&self, host: &Host, output: &Output) -> Result<u8, CliError> {
        let record = record(host, &self.slug).await?;
        let channel = connect_or_open_files(host, &self.slug, Access::Read).await?;
        let form = self.form(output);
        let comparing = async |_| {
            let work = Work::open(host, &record, &channel, output).await?;
            let Work { own, tip, scratch, base, .. } = &work;
            let bottle = (&channel, &self.slug);
            let compared = scratch.compare(bottle, own.as_ref(), base, tip.as_ref(), form).await?;
            Ok((work, compared))
        };
        let (work, compared) =
            progress::with_progress("comparing", "nothing was changed", output, comparing).await?;
        let Work { head, base, .. } = work;
        let Compared { diff, committed, left_out } = compared;
        if base.is_own
            && base.commit != head
            && let Some(commit) = &base.commit
        {
            let commit = commit.short();
            output.note(format!("compared with {commit}, the last commit shared with your repository"));
        }
        if output.json {
            warn_left_out(&left_out, "compared", output);
            let (diff, cut) = text_of(diff);
            output.print_json(&json_schema::Difference {
                slug: self.slug.to_string(),
                other: None,
                base: base.commit.map(|base| base.as_str().to_owned()),
                diff,
                committed: String::from_utf8_lossy(&committed.bytes).into_owned(),
                cut: cut || committed.cut,
            })?;
            return Ok(exit::DONE);
        }
        let cut = print(diff, "the workspace has no changes", output)?;
        warn_committed(&self.slug, &committed.bytes, form, output)?;
        warn_left_out(&left_out, "compared", output);
        if cut || committed.cut {
            output.warn("the diff is truncated; `bottle pull` fetches all commits");
        }
        Ok(exit::DONE)
    }
}

/// Warns if the bottle's last commit has changes that the workspace has not. On a terminal, they follow the diff.
/// Standard output that is no terminal gets only the patch.
fn warn_committed(slug: &Slug, committed: &[u8], form: Form, output: &Output) -> Result<(), CliError> {
    if committed.is_empty() {
        return Ok(());
    }
    let differs = "the bottle's last commit, which `bottle pull` fetches, differs from the workspace here";
    let text = String::from_utf8_lossy(committed);
    match form {
        Form::Stat | Form::NameOnly => {
            output.warn(format!(
                "the bottle's last commit differs from the workspace; `bottle diff {slug}` shows it"
            ));
        }
        Form::Text => {
            output.warn(format!("{differs}:"));
            output.print(&colorize(&text, output.styles()))?;
        }
        Form::Patch | Form::BoundedPatch => {
            output.warn(format!("{differs}:"));
            output.write_error_lines(&colorize(&text, output.err_styles()));
        }
    }
    Ok(())
}

/// Prints the result of a comparison: a patch byte by byte, and text escaped. Returns whether the text was truncated.
fn print(diff: Content, nothing: &str, output: &Output) -> Result<bool, CliError> {
    match diff {
        Content::File(mut patch) => {
            let mut stdout = std::io::stdout().lock();
            let copied = std::io::copy(&mut patch, &mut stdout).map_err(write_failed)?;
            stdout.flush().map_err(write_failed)?;
            if copied == 0 {
                output.note(nothing);
            }
            Ok(false)
        }
        Content::Text(Text { bytes, .. }) if bytes.is_empty() => {
            output.note(nothing);
            Ok(false)
        }
        Content::Text(Text { bytes, cut }) => {
            output.print(&colorize(&String::from_utf8_lossy(&bytes), output.styles()))?;
            Ok(cut)
        }
    }
}

/// The text for JSON, and whether it was truncated.
fn text_of(diff: Content) -> (String, bool) {
    match diff {
        Content::Text(Text { bytes, cut }) => (String::from_utf8_lossy(&bytes).into_owned(), cut),
        // JSON has a bounded form.
        Content::File(_) => (String::new(), true),
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
