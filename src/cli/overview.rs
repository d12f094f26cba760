//! The output of `bottle` without a command: the most frequent commands, and the state of the bottles.

use bottle_host::Host;
use bottle_lib::bottles::active_bottles;
use bottle_lib::report::ActiveBottle;

use super::bottle_status::{label_and_agent, shows_activity, sidecars_down, status};
use crate::console::error::CliError;
use crate::console::exit;
use crate::console::layout::hanging;
use crate::console::output::{Output, counted};
use crate::console::runtime::block_on;

/// The most frequent commands, with a description of each.
const COMMANDS: [(&str, &str); 5] = [
    ("bottle start", "start an agent in a new bottle; `--cwd` copies this directory into it"),
    ("bottle attach", "return to a running agent"),
    ("bottle supervise", "answer the questions of agents"),
    ("bottle pull", "fetch an agent's commits into your repository"),
    ("bottle stop", "end a bottle; its unsaved work is kept"),
];

/// The width of the column of commands, including indentation and gap.
const NAMES: usize = 21;

/// The maximum number of bottles that are shown, so that the output fits on half a screen.
const MAX_BOTTLES: usize = 4;

const MORE: &str = "`bottle help` lists all commands by task, and topics such as `bottle help manifests`.";

/// Prints the overview. With `--json`, prints the same document as `bottle list --json`.
pub(super) fn show(host: Result<Host, CliError>, output: &Output) -> Result<u8, CliError> {
    let host = host?;
    let bottles = block_on(async { Ok(active_bottles(&host, shows_activity(output)).await?) })?;
    output.json_or(&bottles, || print(&bottles, output))?;
    Ok(exit::DONE)
}

fn print(bottles: &[ActiveBottle], output: &Output) -> Result<(), CliError> {
    let styles = output.styles();
    let columns = styles.columns();
    let mut lines = vec!["Run coding agents in isolated bottles.".to_owned(), String::new()];
    for (name, about) in COMMANDS {
        let gap = NAMES.saturating_sub(name.len() + 2);
        let about = hanging(about, NAMES, NAMES, columns);
        lines.push(format!("  {}{:gap$}{about}", styles.bold(name), ""));
    }
    lines.push(String::new());
    lines.extend(state(bottles, output));
    lines.extend([String::new(), hanging(MORE, 0, 0, columns)]);
    output.print(&lines.join("\n"))
}

/// Describes the bottles. Bottles with pending proposals come first, then other running bottles.
fn state(bottles: &[ActiveBottle], output: &Output) -> Vec<String> {
    let mut order: Vec<&ActiveBottle> = bottles.iter().collect();
    order.sort_by_key(|bottle| (bottle.pending == 0, bottle.status != "running"));
    let running = order.iter().filter(|bottle| bottle.status == "running").count();
    let kept = order.iter().filter(|bottle| bottle.status == "kept").count();
    let summary = match (running, kept) {
        (0, 0) if order.is_empty() => "No bottle is running.".to_owned(),
        (0, 0) => format!("{} need a look:", counted(order.len(), "bottle")),
        (running, 0) => format!("{} running:", counted(running, "bottle")),
        (0, kept) => format!("No bottle is running, {} kept:", counted(kept, "bottle")),
        (running, kept) => format!("{} running, {kept} kept:", counted(running, "bottle")),
    };
    let mut lines = vec![summary];
    lines.extend(order.iter().take(MAX_BOTTLES).map(|bottle| {
        let styles = output.styles();
        let label = label_and_agent(bottle.label.as_deref(), bottle.agent.as_deref());
        let slug = styles.named(bottle.color.as_deref(), &bottle.slug);
        let down = sidecars_down(bottle).map(|name| format!(", {}", styles.red(&format!("{name} down"))));
        format!("  {slug} {label}: {}{}", status(bottle, output), down.collect::<String>())
    }));
    if let Some(more) = order.len().checked_sub(MAX_BOTTLES).filter(|more| *more > 0) {
        lines.push(format!("  and {more} more: `bottle list`"));
    }
    lines
}
