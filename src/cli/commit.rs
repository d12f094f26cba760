//! `bottle commit`: saves a snapshot of a bottle without stopping it.

use bottle_host::Host;
use bottle_instance::State;
use bottle_instance::snapshots::CommitOptions;
use bottle_lib::bottles::is_running;
use bottle_lib::report;
use bottle_lib::save_snapshot::document;
use bottle_policy::names::{Name, Slug};

use super::candidates;
use super::save_snapshot::save;
use super::select_bottle::{Question, finish_all, print_results};
use crate::console::error::CliError;
use crate::console::exit;
use crate::console::output::Output;
use crate::console::runtime::block_on;

/// Save a snapshot of a bottle without stopping it, for a later `bottle resume`
///
/// When the new snapshot is complete, it replaces the bottle's previous one. With `--as`, it is added to the
/// bottle's snapshots. A snapshot contains the bottle's files, but not its environment and secrets, unless the
/// agent wrote one of them to a file.
#[derive(Debug, clap::Args)]
pub(crate) struct Commit {
    /// The bottles, as `bottle list` shows them; asks when omitted
    #[arg(value_name = "SLUG", add = candidates::all_bottles())]
    slugs: Vec<Slug>,
    /// Name the snapshot. A named snapshot stays until `bottle snapshots rm` removes it
    #[arg(long = "as", value_name = "NAME")]
    name: Option<Name>,
}

impl Commit {
    pub(crate) fn run(self, host: &Host, output: &Output) -> Result<u8, CliError> {
        let slugs = BOTTLE_QUESTION.select_all(self.slugs, host, output)?;
        let (mut documents, mut errors) = (Vec::new(), Vec::new());
        for slug in &slugs {
            let options = CommitOptions { name: self.name.clone(), removed_by: None };
            let committed = block_on(save(host, slug, options, output));
            match committed.map_err(|error| error.about(slug)) {
                Ok(committed) => {
                    let document = document(host, committed);
                    if !output.json {
                        report(&document, output)?;
                    }
                    documents.push(document);
                }
                Err(error) => errors.push(error),
            }
        }
        if output.json {
            print_results(&documents, slugs.len() == 1, output)?;
        }
        finish_all(errors, output)?;
        Ok(exit::DONE)
    }
}

const BOTTLE_QUESTION: Question = Question {
    prompt: "Make a snapshot of which bottle?",
    suits: |state| is_running(state) || matches!(state, State::Kept(record) if record.kept),
    none: "no bottle is running or kept",
    hint: "`bottle start` starts one",
};

fn report(document: &report::Committed, output: &Output) -> Result<(), CliError> {
    let report::Committed { snapshot, notes, resume, moved_by } = document;
    output.print(&snapshot.reference)?;
    for note in notes {
        output.warn(note);
    }
    output.note(format!("`{resume}` starts from it"));
    if let Some(command) = moved_by {
        output.note(format!("`{command}` moves the bottle to another machine or backend"));
    }
    Ok(())
}
