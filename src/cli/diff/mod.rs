//! `bottle diff`: shows the changes in a bottle's workspace, or how two bottles' workspaces differ ([`between`]).

mod between;

use std::io::{IsTerminal, Write};
use std::path::PathBuf;

use bottle_host::Host;
use bottle_lib::connect::open_files;
use bottle_lib::work::{Compared, ComparedRoot, Comparison, Content, Form, Root, Text, compare};
use bottle_policy::names::Slug;

use crate::cli::candidates;
use crate::cli::confirm_repositories::confirm_repositories;
use crate::console::error::CliError;
use crate::console::exit;
use crate::console::output::{Output, Styles, inert, write_failed};
use crate::console::progress;
use crate::console::runtime::block_on;

/// Show all changes in a bottle's workspace: committed, uncommitted and new files
///
/// Also works after the bottle ended, if its files are kept.
///
/// Compares with the last commit that the bottle shares with the repository that was copied into it. If there is none,
/// compares with this repository's `HEAD`. A directory without a repository is compared with its files at the start. If
/// nothing was copied, compares with the bottle's last commit. Your own git makes the diff, and ignores git attributes and
/// configuration from the bottle.
///
/// If standard output is not a terminal, prints a patch that `git apply` takes, with binary files, in the root of
/// the repository. The patch contains the bytes of the files, so a terminal should not show it unescaped.
///
/// With several `--cwd`, shows the changes of all directories, and each path begins with the directory's name. With
/// `--directory`, the patch is one of the repository that the directory was copied from.
///
/// With a second bottle, shows what its workspace has that the first one's has not, for example in a fork.
#[derive(Debug, clap::Args)]
pub(crate) struct Diff {
    /// The bottle, as `bottle list` shows it
    #[arg(add = candidates::with_files())]
    slug: Slug,
    /// Compare with the workspace of this bottle instead of a commit
    #[arg(value_name = "OTHER", add = candidates::with_files())]
    other: Option<Slug>,
    /// Show only the changes in this directory of the workspace
    #[arg(long, alias = "folder", value_name = "DIRECTORY")]
    directory: Option<String>,
    /// Compare with this repository, instead of the one that was copied
    #[arg(long, value_name = "PATH", conflicts_with = "other")]
    repository: Option<PathBuf>,
    /// Show only the number of changed lines of each file
    #[arg(long, conflicts_with = "name_only")]
    stat: bool,
    /// Show only the paths of the changed files
    #[arg(long)]
    name_only: bool,
}

impl Diff {
    pub(crate) fn run(self, host: &Host, output: &Output) -> Result<u8, CliError> {
        block_on(async {
            match &self.other {
                Some(other) => {
                    let bottles = [&self.slug, other];
                    between::show(bottles, self.directory.as_deref(), self.form(output), host, output).await
                }
                None => self.show(host, output).await.map_err(|error| error.about_if_unset(&self.slug)),
            }
        })
    }

    /// Returns the form of the diff. A terminal gets a form for reading instead of a patch.
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
        let (record, channel) = open_files(host, &self.slug, |_| Ok(())).await?;
        let form = self.form(output);
        let directory = self.directory.as_deref();
        let mut roots = Root::of(host, &record, directory)?;
        confirm_repositories(&mut roots, self.repository.as_deref(), None, output)?;
        let comparing = async |_| {
            let (bottle, roots) = ((&record, &channel), (roots, directory.is_none()));
            Ok(compare(host, bottle, roots, form, &|notice| output.notice(notice)).await?)
        };
        let compared = progress::with_progress("comparing", "nothing was changed", output, comparing).await?;
        let notices = compared.roots.iter().filter_map(|root| root.work.base_notice());
        notices.for_each(|notice| output.notice(notice));
        let beside = compared.beside.warning(&self.slug, "compared");
        let cut = if output.json {
            for ComparedRoot { work, compared, .. } in &compared.roots {
                output.warn_all(compared.left_out.warnings(&work.root.name, "compared"));
            }
            output.print_json(&compared.document(&self.slug))?;
            false
        } else {
            self.print(compared, form, output)?
        };
        output.warn_all(beside);
        if cut {
            output.warn("the diff is truncated; `bottle pull` fetches all commits");
        }
        Ok(exit::DONE)
    }

    /// Prints the comparison. Returns whether a part of the diff was truncated.
    fn print(&self, compared: Comparison<'_>, form: Form, output: &Output) -> Result<bool, CliError> {
        let (mut has_changes, mut cut) = (false, false);
        let mut rest = Vec::new();
        for ComparedRoot { work, compared: Compared { diff, committed, left_out }, .. } in compared.roots {
            let printed = print(diff, output)?;
            has_changes |= printed.has_changes;
            cut |= printed.cut || committed.cut;
            rest.push((work.root, committed, left_out));
        }
        if !has_changes {
            output.note(match compared.is_all {
                true => "the workspace has no changes",
                false => "the other directories have no changes",
            });
        }
        for (root, committed, left_out) in rest {
            warn_committed(&root, &committed.bytes, form, output)?;
            output.warn_all(left_out.warnings(&root.name, "compared"));
        }
        Ok(cut)
    }
}

/// Warns if the bottle's last commit has changes that the workspace does not have. On a terminal, prints these changes
/// after the diff. If standard output is not a terminal, prints them to standard error, because standard output
/// contains only the patch.
fn warn_committed(root: &Root, committed: &[u8], form: Form, output: &Output) -> Result<(), CliError> {
    if committed.is_empty() {
        return Ok(());
    }
    let (slug, label) = (&root.slug, root.label());
    let differs = format!(
        "{label}the bottle's last commit, which `bottle pull` fetches, differs from the workspace here"
    );
    let text = String::from_utf8_lossy(committed);
    match form {
        Form::Stat | Form::NameOnly => {
            output.warn(format!(
                "{label}the bottle's last commit differs from the workspace; `bottle diff {slug}` shows it"
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

/// The result of printing a comparison.
struct Printed {
    has_changes: bool,
    /// Whether the text was truncated.
    cut: bool,
}

/// Prints the result of a comparison. Does not change the bytes of a patch, and escapes text.
fn print(diff: Content, output: &Output) -> Result<Printed, CliError> {
    match diff {
        Content::File(mut patch) => {
            let mut stdout = std::io::stdout().lock();
            let copied = std::io::copy(&mut patch, &mut stdout).map_err(write_failed)?;
            stdout.flush().map_err(write_failed)?;
            Ok(Printed { has_changes: copied > 0, cut: false })
        }
        Content::Text(Text { bytes, .. }) if bytes.is_empty() => {
            Ok(Printed { has_changes: false, cut: false })
        }
        Content::Text(Text { bytes, cut }) => {
            output.print(&colorize(&String::from_utf8_lossy(&bytes), output.styles()))?;
            Ok(Printed { has_changes: true, cut })
        }
    }
}

/// Escapes the diff for the terminal, and colours it if the output is coloured.
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
