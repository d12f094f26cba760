//! `bottle diff`: shows the changes in a bottle's workspace, or how two bottles' workspaces differ ([`between`]).

mod between;

use std::io::{IsTerminal, Write};
use std::path::{Path, PathBuf};

use bottle_channel::Channel;
use bottle_contract::names::Slug;

use crate::backend::Access;
use crate::cli::completions;
use crate::cli::connect::connect_or_open_files;
use crate::cli::error::CliError;
use crate::cli::exit;
use crate::cli::git::{Beside, Compared, Content, Form, LeftOut, Root, Text, Work};
use crate::cli::json_schema;
use crate::cli::output::{Output, Styles, counted, inert, one_line, write_failed};
use crate::cli::progress;
use crate::cli::pull::record;
use crate::host::Host;

/// Show all changes in a bottle's workspace: committed, uncommitted and new files
///
/// Also works after the bottle ended, if its files are preserved.
///
/// Compares with the last commit that the bottle shares with the repository that was copied into it. If there is none,
/// compares with this repository's `HEAD`. Without such a repository, compares with the bottle's last commit. Your own git
/// makes the diff, and ignores git attributes and configuration from the bottle.
///
/// If standard output is not a terminal, prints a patch that `git apply` takes, with binary files, in the root of
/// the repository. The patch contains the bytes of the files, so a terminal should not show it unescaped.
///
/// With several `--cwd`, shows the changes of all folders, and each path begins with the folder's name. With
/// `--folder`, the patch is one of the repository that the folder was copied from.
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
    /// Show only the changes in this folder of the workspace
    #[arg(long, value_name = "FOLDER")]
    folder: Option<String>,
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
        crate::cli::block_on(async {
            match &self.other {
                Some(other) => {
                    let bottles = [&self.slug, other];
                    between::show(bottles, self.folder.as_deref(), self.form(output), host, output).await
                }
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
        let folder = self.folder.as_deref();
        let mut roots = Root::of(host, &record, folder)?;
        Root::confirm_repositories(&mut roots, self.repository.as_deref(), None, output)?;
        let comparing = async |_| {
            let mut all = Vec::new();
            for root in each_root(roots) {
                all.push(compare(host, root, &channel, form, output).await);
            }
            let count = all.len();
            let compared = compared(all, |_| true, output)?;
            let is_all = compared.len() == count;
            let beside =
                if folder.is_none() { Beside::find(&channel, &record).await? } else { Beside::default() };
            Ok((compared, is_all, beside))
        };
        let (compared, is_all, beside) =
            progress::with_progress("comparing", "nothing was changed", output, comparing).await?;
        compared.iter().for_each(|one| note_base(one, output));
        let cut = if output.json {
            self.print_json(compared, output)?
        } else {
            let nothing =
                if is_all { "the workspace has no changes" } else { "the other folders have no changes" };
            self.print(compared, nothing, form, output)?
        };
        beside.warn(&self.slug, "compared", output);
        if cut {
            output.warn("the diff is truncated; `bottle pull` fetches all commits");
        }
        Ok(exit::DONE)
    }

    fn print_json(&self, compared: Vec<ComparedRoot<'_>>, output: &Output) -> Result<bool, CliError> {
        let mut document = json_schema::Difference {
            slug: self.slug.to_string(),
            folders: Vec::new(),
            other: None,
            base: None,
            diff: String::new(),
            committed: String::new(),
            cut: false,
        };
        for ComparedRoot { shown_in, work, compared: Compared { diff, committed, left_out } } in compared {
            warn_left_out(&work.root.name, &left_out, "compared", output);
            let (text, cut) = text_of(diff);
            document.diff += &text;
            document.committed += &String::from_utf8_lossy(&committed.bytes);
            document.cut |= cut || committed.cut;
            let base = work.base.commit.map(|base| base.as_str().to_owned());
            match shown_in {
                Some(name) => document.folders.push(json_schema::ComparedFolder { name, base }),
                None => document.base = base,
            }
        }
        output.print_json(&document)?;
        Ok(false)
    }

    /// Prints the comparisons, or `nothing` if they have no changes. Returns whether something was truncated.
    fn print(
        &self,
        all: Vec<ComparedRoot<'_>>,
        nothing: &str,
        form: Form,
        output: &Output,
    ) -> Result<bool, CliError> {
        let (mut has_changes, mut cut, mut rest) = (false, false, Vec::new());
        for ComparedRoot { work, compared: Compared { diff, committed, left_out }, .. } in all {
            let printed = print(diff, output)?;
            has_changes |= printed.has_changes;
            cut |= printed.cut || committed.cut;
            rest.push((work, committed, left_out));
        }
        if !has_changes {
            output.note(nothing);
        }
        for (work, committed, left_out) in rest {
            warn_committed(&work.root, &committed.bytes, form, output)?;
            warn_left_out(&work.root.name, &left_out, "compared", output);
        }
        Ok(cut)
    }
}

/// The comparison of a workspace, or of a folder of it.
struct ComparedRoot<'a> {
    /// The folder with which the paths begin. `None` if they are those in the user's repository.
    shown_in: Option<String>,
    work: Work<'a>,
    compared: Compared,
}

/// The parts of a workspace, each with the folder with which the paths begin.
fn each_root(roots: Vec<Root>) -> impl Iterator<Item = (Root, Option<String>)> {
    let several = roots.len() > 1;
    roots.into_iter().map(move |root| {
        let folder = several.then(|| root.name.clone());
        (root, folder)
    })
}

async fn compare<'a>(
    host: &'a Host,
    (root, shown_in): (Root, Option<String>),
    channel: &Channel,
    form: Form,
    output: &Output,
) -> Result<ComparedRoot<'a>, (Root, CliError)> {
    let comparing = async {
        let work = Work::open(host, root.clone(), channel, output).await?;
        let Work { own, tip, scratch, base, .. } = &work;
        let form = (form, shown_in.as_deref());
        let compared = scratch.compare((channel, &work.root), own.as_ref(), base, tip.as_ref(), form).await?;
        Ok((work, compared))
    };
    match comparing.await {
        Ok((work, compared)) => Ok(ComparedRoot { shown_in, work, compared }),
        Err(error) => Err((root, error)),
    }
}

/// The comparisons that succeeded. Warns about a folder whose error is to be `skipped`, if another one could be
/// compared.
///
/// # Errors
/// Returns the first other error.
pub(in crate::cli) fn compared<T>(
    all: Vec<Result<T, (Root, CliError)>>,
    skipped: impl Fn(&CliError) -> bool,
    output: &Output,
) -> Result<Vec<T>, CliError> {
    let (has_some, several) = (all.iter().any(Result::is_ok), all.len() > 1);
    let (mut done, mut failed) = (Vec::new(), Vec::new());
    for result in all {
        match result {
            Ok(compared) => done.push(compared),
            Err((root, error)) if !has_some || !skipped(&error) => {
                let leave_out = || several.then(|| "name another folder to leave this one out".to_owned());
                let label = if several { root.label() } else { String::new() };
                let hint = error.hint.clone().or_else(leave_out);
                return Err(CliError { message: format!("{label}{}", error.message), hint, ..error });
            }
            Err(error) => failed.push(error),
        }
    }
    for (root, error) in failed {
        output.warn(format!(
            "{} was not compared: {}; `bottle cp {} FOLDER` copies it out",
            one_line(&root.name),
            inert(&error.message),
            root.source()
        ));
    }
    Ok(done)
}

/// Says which commit the comparison began with, if it is not the user's last one.
fn note_base(compared: &ComparedRoot<'_>, output: &Output) {
    let Work { root, base, head, .. } = &compared.work;
    if base.is_own
        && base.commit != *head
        && let Some(commit) = &base.commit
    {
        let (label, commit) = (root.label(), commit.short());
        output.note(format!("{label}compared with {commit}, the last commit shared with your repository"));
    }
}

/// Warns if the bottle's last commit has changes that the workspace has not. On a terminal, they follow the diff.
/// Standard output that is no terminal gets only the patch.
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

/// What was printed of a comparison.
struct Printed {
    has_changes: bool,
    /// Whether the text was truncated.
    cut: bool,
}

/// Prints the result of a comparison: a patch byte by byte, and text escaped.
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

/// The text for JSON, and whether it was truncated.
fn text_of(diff: Content) -> (String, bool) {
    match diff {
        Content::Text(Text { bytes, cut }) => (String::from_utf8_lossy(&bytes).into_owned(), cut),
        // JSON has a bounded form.
        Content::File(_) => (String::new(), true),
    }
}

/// Warns about files that were not compared or pulled, because an agent can cause files to be left out. `folder` is the
/// folder of the workspace that contains them, if it has several.
pub(in crate::cli) fn warn_left_out(folder: &str, left_out: &LeftOut, verb: &str, output: &Output) {
    let name = |path: &PathBuf| one_line(&Path::new(folder).join(path).display().to_string());
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
