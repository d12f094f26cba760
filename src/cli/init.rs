//! `bottle init`: writes the shipped manifests to the user's directory, or imports manifests of another tool.

use std::path::{Path, PathBuf};

use bottle_host::{Host, disk};
use bottle_lib::text::from_home;
use bottle_manifest::resolve;
use bottle_manifest::write_manifest::{path_of, write_new_manifest};
use bottle_manifest::{Homes, Imported, Kind as ManifestKind, Manifests, import};
use bottle_policy::names::Name;
use serde::Serialize;

use super::choice::manifests;
use crate::console::error::{CliError, Kind};
use crate::console::exit;
use crate::console::output::Output;

/// Write the shipped manifests to `$BOTTLE_HOME`, so that you can change them
///
/// Bottle then uses each file instead of the shipped manifest of the same name. Existing files are not
/// overwritten.
#[derive(Debug, clap::Args)]
pub(crate) struct Init {
    /// Import the manifests of a bot-bottle home instead; without DIR, of `$BOT_BOTTLE_HOME`, else of
    /// `~/.bot-bottle`
    #[arg(long, value_name = "DIR", num_args = 0..=1)]
    import: Option<Option<PathBuf>>,
}

/// One manifest in the output of `--json`.
#[derive(Debug, Serialize)]
struct Written {
    kind: ManifestKind,
    name: Name,
    file: PathBuf,
    /// Whether the file was written. False if a file of that name existed.
    written: bool,
    /// Notes on settings that have a different meaning in the other tool.
    notes: Vec<&'static str>,
    /// Why the manifest is unusable.
    problem: Option<String>,
}

impl Init {
    pub(crate) fn run(self, host: &Host, output: &Output) -> Result<u8, CliError> {
        let written = match &self.import {
            Some(directory) => {
                let directory =
                    directory.as_ref().map_or_else(|| host.bot_bottle_home(), |named| host.cwd.join(named));
                host.unused_bot_bottle_variables().iter().for_each(|note| output.note(note));
                host.stale_bot_bottle_manifests(Some(&directory)).iter().for_each(|note| output.note(note));
                self::import(host, &directory, output)?
            }
            None => shipped(host)?,
        };
        output.json_or(&written, || report(&written, host, output))?;
        let unusable = self.import.is_some() && written.iter().any(|one| one.problem.is_some());
        Ok(if unusable { exit::MANIFEST } else { exit::DONE })
    }
}

fn shipped(host: &Host) -> Result<Vec<Written>, CliError> {
    Manifests::shipped().map(|(kind, name, text)| write(host, kind, name, text)).collect()
}

fn import(host: &Host, directory: &Path, output: &Output) -> Result<Vec<Written>, CliError> {
    if !directory.is_dir() {
        let theirs = host.bot_bottle_home();
        let hint = if theirs != directory && theirs.is_dir() {
            format!("`bottle init --import` without DIR reads {}", theirs.display())
        } else {
            "`bottle init --import DIR` reads the directory that contains bot-bottle's `bottles` and `agents`"
                .to_owned()
        };
        return Err(CliError::usage(format!("there is no directory {}", directory.display()))
            .about(directory.display())
            .hint(hint));
    }
    let (found, warnings) = import::read(directory, &Homes::from(host));
    for warning in &warnings {
        output.warn(warning);
    }
    if found.is_empty() {
        return Err(CliError::new(
            Kind::Manifest,
            format!("there are no agent or bottle manifests in {}", directory.display()),
        )
        .about(directory.display())
        .hint("agents are `agents/NAME.md`, bottles `bottles/NAME.md`"));
    }
    let mut written: Vec<Written> =
        found.into_iter().map(|imported| write_imported(host, imported)).collect::<Result<_, _>>()?;
    // The manifests are checked after all of them are written, because they refer to each other.
    let all = manifests(host);
    for one in written.iter_mut().filter(|one| one.problem.is_none()) {
        one.problem = problem(one, &all);
    }
    Ok(written)
}

fn write_imported(host: &Host, imported: Imported) -> Result<Written, CliError> {
    let Imported { kind, name, text, notes } = imported;
    match text {
        Ok(text) => Ok(Written { notes, ..write(host, kind, name, &text)? }),
        Err(error) => {
            let file = path_of(&host.home, kind, &name);
            Ok(Written { kind, name, file, written: false, notes, problem: Some(error.to_string()) })
        }
    }
}

fn write(host: &Host, kind: ManifestKind, name: Name, text: &str) -> Result<Written, CliError> {
    let file = path_of(&host.home, kind, &name);
    let written = write_new_manifest(&host.home, kind, &name, text).map_err(|error| {
        let hint = format!("{}; `bottle init` then continues", disk::hint(&error));
        CliError::path("write", &file, error).hint(hint)
    })?;
    Ok(Written { kind, name, file, written, notes: Vec::new(), problem: None })
}

/// Returns why a manifest that was just written is unusable, or `None` if it is usable.
fn problem(one: &Written, all: &Manifests) -> Option<String> {
    let error = match one.kind {
        ManifestKind::Agent => all.agent(&one.name).err().map(resolve::ResolveError::from),
        ManifestKind::Bottle => resolve::lineage(&one.name, all).err(),
    }?;
    Some(match error.hint() {
        Some(hint) => format!("{}; {hint}", error.message()),
        None => error.message(),
    })
}

fn report(written: &[Written], host: &Host, output: &Output) -> Result<(), CliError> {
    let short = |text: &str| from_home(text, &host.user_home);
    for one in written.iter().filter(|one| one.written) {
        output.print(&one.file.display().to_string())?;
    }
    let kept = written.iter().filter(|one| !one.written && one.problem.is_none()).count();
    if kept > 0 {
        output.note(format!("{kept} already existed and stay unchanged"));
    }
    for one in written {
        let name = format!("{} {}", one.kind, one.name);
        for note in &one.notes {
            output.note(format!("{name}: {note}"));
        }
        if let Some(problem) = &one.problem {
            output.warn(short(&format!("cannot use the {name}: {problem}")));
        }
    }
    if written.iter().any(|one| one.written) {
        output.note("`bottle edit NAME` opens one and checks it");
    }
    Ok(())
}
