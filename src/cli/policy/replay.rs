//! `bottle policy test`: decides recorded requests again with the current routes.

use std::fs::File;
use std::io::{self, BufRead, BufReader};
use std::path::{Path, PathBuf};

use bottle_host::Host;
use bottle_lib::policy::replay;
use bottle_lib::report::{RecordedVerdict, Replayed};

use super::{PolicySource, colored_verdict};
use crate::console::error::CliError;
use crate::console::exit;
use crate::console::output::{Output, inert};

/// The arguments of `policy test`.
#[derive(Debug, clap::Args)]
pub(crate) struct Test {
    /// A file of recorded requests, one per line, as `bottle logs --egress --json` prints them; `-` is standard
    /// input
    file: PathBuf,
    #[command(flatten)]
    source: PolicySource,
}

impl Test {
    pub(super) fn run(self, host: &Host, output: &Output) -> Result<u8, CliError> {
        let decider = self.source.decider(host, output)?;
        let replayed = replay(&decider, &self.file, || open(&self.file))?;
        output.json_or(&replayed, || show(&replayed, output))?;
        Ok(if replayed.changed.is_empty() { exit::DONE } else { exit::FAILED })
    }
}

fn open(path: &Path) -> io::Result<Box<dyn BufRead>> {
    match path == Path::new("-") {
        true => Ok(Box::new(io::stdin().lock())),
        false => Ok(Box::new(BufReader::new(File::open(path)?))),
    }
}

fn show(replayed: &Replayed, output: &Output) -> Result<(), CliError> {
    let styles = output.styles();
    let shown = |recorded: &RecordedVerdict| {
        let reason = recorded.reason.as_ref().map(|reason| format!(" {reason}")).unwrap_or_default();
        format!("{}{}", colored_verdict(&recorded.verdict, styles), inert(&reason))
    };
    output.print_list(&replayed.changed, &["REQUEST", "WAS", "NOW", "TIMES"], 0, |change| {
        let request = inert(&format!("{} {}", change.method, change.url));
        vec![request, shown(&change.was), shown(&change.now), change.times.to_string()]
    })?;
    let changed: usize = replayed.changed.iter().map(|change| change.times).sum();
    let more = if replayed.more { " and more" } else { "" };
    let skipped = match replayed.skipped {
        0 => String::new(),
        skipped => format!("; records skipped: {skipped}"),
    };
    output.note(format!(
        "requests decided again: {}; with a different verdict: {changed}{more}{skipped}",
        replayed.replayed
    ));
    Ok(())
}
