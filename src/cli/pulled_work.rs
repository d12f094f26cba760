//! Describes what a pull fetched.

use bottle_lib::text::quoted;
use bottle_lib::work::{Fetched, Pulled, PulledWork, Root};

use crate::console::error::CliError;
use crate::console::output::{Output, counted, inert};

/// Prints what was pulled. Returns the first failure of a directory as an error.
pub(crate) fn report(work: PulledWork, output: &Output) -> Result<(), CliError> {
    if output.json {
        output.print_json(&work.document())?;
        warn(&work, output);
    } else {
        print(&work, output)?;
    }
    failed(work)
}

/// Returns the first failure of a directory as an error.
pub(crate) fn failed(work: PulledWork) -> Result<(), CliError> {
    work.failure().map_or(Ok(()), |failure| Err(failure.into()))
}

/// Prints what was pulled, and warns about work that was not pulled.
pub(crate) fn print(work: &PulledWork, output: &Output) -> Result<(), CliError> {
    work.pulled().try_for_each(|(root, pulled)| print_root(root, pulled, output))?;
    warn(work, output);
    Ok(())
}

/// Warns about work that was not pulled. Omits the first failure, because the command returns it as its error.
pub(crate) fn warn(work: &PulledWork, output: &Output) {
    output.warn_all(work.warnings());
}

/// Prints what was pulled from a workspace, or from a directory of it.
fn print_root(root: &Root, pulled: &Pulled, output: &Output) -> Result<(), CliError> {
    let (slug, label) = (&root.slug, root.label());
    let (place, directory) = match root.is_directory() {
        true => (
            format!(" in {}", inert(&root.directory.display().to_string())),
            format!(" --directory {}", quoted(&root.name)),
        ),
        false => (String::new(), String::new()),
    };
    // For one of several directories, no command is suggested: its repository may belong to another user.
    let log = |shows: &str| match root.is_directory() {
        true => String::new(),
        false => format!("; `git log HEAD..{branch}` {shows}", branch = pulled.fetched.branch),
    };
    let Pulled { fetched, taken, uncommitted, elsewhere, left_out, unread, .. } = pulled;
    let Fetched { branch, commits, replaced, .. } = fetched;
    output.print(&format!("{label}{branch}"))?;
    output.note(match commits {
        0 => format!("{label}{branch}{place} has no commits that HEAD lacks"),
        1 => format!("{label}{branch}{place} has 1 commit that HEAD lacks{}", log("shows it")),
        many => format!("{label}{branch}{place} has {many} commits that HEAD lacks{}", log("shows them")),
    });
    if *taken > 0 {
        output.note(format!("{label}its last commit has the uncommitted work: {}", counted(*taken, "file")));
    }
    if let Some(replaced) = replaced {
        let replaced = replaced.short();
        output.note(format!(
            "{label}this replaces {replaced}, which an earlier `bottle pull --uncommitted` made"
        ));
    }
    if let Some(cause) = unread {
        output.warn(format!("{label}the bottle's commits were not pulled: {}", inert(cause)));
    }
    if *uncommitted > 0 {
        let (files, are) = (counted(*uncommitted, "file"), if *uncommitted == 1 { "is" } else { "are" });
        output.warn(format!(
            "{label}{files} {are} uncommitted; `bottle diff {slug}{directory}` shows the changes, \
             `bottle pull {slug}{directory} --uncommitted` takes them too"
        ));
    }
    output.warn_all(left_out.warnings(&root.name, "pulled"));
    if *elsewhere > 0 {
        let branches =
            if *elsewhere == 1 { "1 other branch".to_owned() } else { format!("{elsewhere} other branches") };
        output.warn(format!(
            "{label}commits on {branches} in the bottle were not pulled; `--branch` pulls one"
        ));
    }
    Ok(())
}
