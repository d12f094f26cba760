//! Shows and follows the proxy's access log. `--json` prints the lines as the proxy wrote them.

use std::io::ErrorKind;
use std::path::Path;

use bottle_host::Host;
use bottle_instance::proxy_log::files;
use bottle_instance::{State, Store};
use bottle_lib::logs::egress::{self, Followed, Tail};

use super::Logs;
use crate::console::decision;
use crate::console::error::CliError;
use crate::console::exit;
use crate::console::output::{Output, POLL_INTERVAL, inert, wait_while_read};

/// Prints the access log of a bottle.
pub(super) fn show(logs: &Logs, host: &Host, output: &Output) -> Result<u8, CliError> {
    let directory = egress::directory(host, &logs.slug);
    if files(&directory).is_empty() && !logs.follow {
        return Err(egress::empty(&logs.slug).into());
    }
    let most = logs.tail.map(|lines| usize::try_from(lines).unwrap_or(usize::MAX));
    let mut tail = most.map(|lines| Tail::new(lines, usize::MAX));
    let current = egress::read(&directory, logs.since, |line| match &mut tail {
        Some(tail) => {
            tail.push(line);
            Ok(())
        }
        None => print(&line, output),
    })?;
    for line in tail.into_iter().flat_map(|tail| tail.last) {
        print(&line, output)?;
    }
    if logs.follow {
        follow(&directory.join("egress.jsonl"), current, logs, host, output)?;
    }
    Ok(exit::DONE)
}

fn print(line: &str, output: &Output) -> Result<(), CliError> {
    let shown = if output.json { inert(line) } else { decision::format_line(line, output.styles()) };
    output.print(&shown)
}

/// Follows the log until the bottle has ended and all lines of the log were printed.
fn follow(
    path: &Path,
    mut current: Option<Followed>,
    logs: &Logs,
    host: &Host,
    output: &Output,
) -> Result<(), CliError> {
    let store = Store::of(host);
    loop {
        // Checks the state before reading the file, so that the last lines of an ending bottle are not missed.
        let alive = matches!(store.state(&logs.slug), Some(State::Alive(_)));
        if let Some(file) = &mut current {
            while let Some(line) = file.line(logs.since)? {
                print(&line, output)?;
            }
        }
        if current.as_ref().is_none_or(|file| file.was_replaced(path)) {
            match Followed::open(path) {
                Ok(next) => {
                    current = Some(next);
                    continue;
                }
                Err(error) if error.kind() == ErrorKind::NotFound => {}
                Err(error) => {
                    return Err(CliError::cannot(format_args!("read {}", path.display()), error));
                }
            }
        }
        if !alive {
            return Ok(());
        }
        wait_while_read(POLL_INTERVAL)?;
    }
}
