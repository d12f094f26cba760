//! The status of a bottle in words.

use bottle_lib::report::ActiveBottle;
use jiff::Timestamp;

use crate::console::output::{Output, counted, one_line};

/// Whether the output includes what each agent does at the moment.
pub(crate) fn shows_activity(output: &Output) -> bool {
    output.json || is_on_terminal(output)
}

/// Formats how long ago `time` was, in the largest suitable unit.
pub(crate) fn ago(time: Timestamp, now: Timestamp) -> String {
    let seconds = now.duration_since(time).as_secs().max(0);
    match seconds {
        0..60 => "<1 min".to_owned(),
        60..3600 => format!("{} min", seconds / 60),
        3600..172_800 => format!("{} h", seconds / 3600),
        _ => counted(seconds / 86_400, "day"),
    }
}

/// Whether the output is a terminal. On a terminal, problems are listed below the table.
pub(crate) fn is_on_terminal(output: &Output) -> bool {
    output.styles().columns().is_some()
}

/// Describes the status of a bottle, and problems that need the user's attention.
pub(crate) fn status(bottle: &ActiveBottle, output: &Output) -> String {
    let styles = output.styles();
    let status = match (bottle.status, bottle.mode, &bottle.problem) {
        (status, _, Some(_)) if is_on_terminal(output) => styles.red(status),
        (status, _, Some(problem)) => format!("{}: {}", styles.red(status), one_line(problem)),
        ("running", Some(mode), None) => format!("{} ({mode})", running(bottle, output)),
        (status, ..) if bottle.kept_for == Some("conversation") => {
            format!("{} (conversation)", styles.yellow(status))
        }
        (status, ..) => styles.yellow(status),
    };
    let status = match &bottle.locked {
        Some(_) => format!("{status}, {}", styles.red("locked")),
        None => status,
    };
    let status = match &bottle.paused {
        Some(_) => format!("{status}, {}", styles.yellow("paused: budget")),
        None => status,
    };
    let status = match bottle.cut_off {
        true => format!("{status}, {}", styles.yellow("cut off from models")),
        false => status,
    };
    let status = match bottle.pending {
        0 => status,
        pending => format!("{status}, {}", styles.yellow(&counted(pending, "proposal"))),
    };
    match bottle.other_engine() {
        Some(address) => format!("{status}, {}", styles.yellow(&format!("on {}", one_line(address)))),
        None => status,
    }
}

/// Returns the status of a running bottle. On a terminal, this is the activity of its agent, if the activity is known.
fn running(bottle: &ActiveBottle, output: &Output) -> String {
    let styles = output.styles();
    match bottle.activity.filter(|_| is_on_terminal(output)) {
        Some("working") => styles.green("working"),
        Some("asking") => styles.yellow("needs an answer"),
        Some(_) => {
            let since = bottle.active_at.map(|at| format!(" {}", ago(at, Timestamp::now())));
            styles.dim(&format!("idle{}", since.unwrap_or_default()))
        }
        None => styles.green("running"),
    }
}

/// Returns the names of the sidecars of a bottle that are known to be down.
pub(crate) fn sidecars_down(bottle: &ActiveBottle) -> impl Iterator<Item = String> {
    bottle.services.iter().filter(|sidecar| !sidecar.up).map(|sidecar| one_line(&sidecar.name))
}

/// Formats `LABEL (AGENT)`.
pub(crate) fn label_and_agent(label: Option<&str>, agent: Option<&str>) -> String {
    let label = label.map(|label| format!("{} ", one_line(label))).unwrap_or_default();
    format!("{label}({})", agent.unwrap_or("?"))
}
