//! The program of the shipped agent `probe`, which runs the attempts of `bottle probe` in its own bottle.

use std::ffi::OsString;
use std::process::ExitCode;

use bottle_keeper::launch::isolation::all_blocked;
use bottle_policy::secret::Secret;
use bottle_protocol::session::guest::Probe as ProbeRequest;
use clap::ColorChoice;

use super::probe_table::table;
use crate::console::exit;
use crate::console::global::Global;
use crate::console::output::Output;
use crate::console::runtime::block_on;

/// The program of the agent `probe`: runs the attempts and prints the table.
pub fn run() -> ExitCode {
    let global = Global { json: false, quiet: false, verbose: 0, color: ColorChoice::Auto };
    let output = Output::new(&global);
    // The probe inspects the environment of this process, because every process in the bottle has the same environment.
    let given = std::env::vars_os().map(text).collect();
    let attempts = block_on(async { Ok(bottle_guest::probe::run(&ProbeRequest::default(), &given).await) });
    let printed = attempts.and_then(|attempts| {
        output.print(&table(&attempts, output.styles()))?;
        Ok(all_blocked(&attempts))
    });
    match printed {
        Ok(true) => ExitCode::from(exit::DONE),
        Ok(false) => ExitCode::from(exit::FAILED),
        Err(error) => {
            output.error(&error);
            ExitCode::from(error.exit)
        }
    }
}

fn text((name, value): (OsString, OsString)) -> (String, Secret) {
    (name.to_string_lossy().into_owned(), Secret::new(value.to_string_lossy().into_owned()))
}
