//! `bottle learn`: derives routes from denied requests.
//!
//! The routes become a proposal in the bottle's supervise queue, like a proposal of the bottle's agent. The user
//! answers the proposal with `bottle supervise`.

use bottle_host::Host;
use bottle_lib::learn::Learnt;
use bottle_lib::saved_routes::{Addition, SaveError};
use bottle_policy::names::{Name, Slug};
use bottle_policy::proposal;

use super::candidates;
use super::route_addition::show_addition;
use crate::console::error::CliError;
use crate::console::exit;
use crate::console::output::{Output, one_line, times};
use crate::console::runtime::block_on;

/// Show routes that would allow a bottle's denied requests, and propose them
///
/// The proposal goes to the bottle's supervise queue: review and answer it with `bottle supervise`. This
/// command reads the proxy's access log: start the bottle with `--learn`, or set `egress.log: 1`.
#[derive(Debug, clap::Args)]
pub(crate) struct Learn {
    /// The bottle, as `bottle list` shows it
    #[arg(add = candidates::all_bottles())]
    slug: Slug,
    /// Show the routes without proposing them
    #[arg(long)]
    dry_run: bool,
    /// Add the routes to this bottle manifest of yours instead of proposing them; a new name creates one
    #[arg(long, value_name = "BOTTLE", conflicts_with = "dry_run", add = candidates::bottles())]
    save: Option<Name>,
}

impl Learn {
    pub(crate) fn run(self, host: &Host, output: &Output) -> Result<u8, CliError> {
        let slug = &self.slug;
        let learnt = Learnt::of(host, slug)?;
        let proposes = !self.dry_run && self.save.is_none();
        let asked = proposes && block_on(async { Ok(learnt.propose(host).await?) })?;
        output.json_or(&learnt.document(asked), || show(slug, &learnt, output))?;
        match (&self.save, learnt.learned.routes) {
            (Some(name), Some(routes)) => save(host, slug, name, routes, output)?,
            (_, routes) => hint_next_step(slug, routes.is_some(), asked, output),
        }
        Ok(exit::DONE)
    }
}

fn show(slug: &Slug, learnt: &Learnt, output: &Output) -> Result<(), CliError> {
    let Learnt { learned, opens, .. } = learnt;
    let styles = output.styles();
    let mut lines = Vec::new();
    let list = |lines: &mut Vec<String>, title: &str, items: Vec<String>| {
        if !items.is_empty() {
            lines.push(title.to_owned());
            lines.extend(items.iter().map(|item| format!("  - {}", styles.hanging(&one_line(item), 4))));
            lines.push(String::new());
        }
    };
    let refused = learned.hosts.iter().map(|(host, count)| format!("{host}, {}", times(*count)));
    list(
        &mut lines,
        &format!("Denied requests of {} that routes can allow:", styles.bold(slug.as_str())),
        refused.collect(),
    );
    list(&mut lines, "The routes allow:", opens.clone());
    list(&mut lines, "They allow more than was requested:", learned.rules.clone());
    let left = learned.left_out.iter().map(|(host, count, why)| format!("{host}, {}: {why}", times(*count)));
    list(&mut lines, "Not covered:", left.collect());
    if let Some(routes) = &learned.routes {
        lines.push(routes.render().trim_end().to_owned());
    }
    while lines.last().is_some_and(String::is_empty) {
        lines.pop();
    }
    if lines.is_empty() { Ok(()) } else { output.print(&lines.join("\n")) }
}

/// Shows the lines of the new routes, and writes them to one of the user's manifests.
fn save(
    host: &Host,
    slug: &Slug,
    name: &Name,
    routes: proposal::Proposal,
    output: &Output,
) -> Result<(), CliError> {
    let addition = Addition::new(host, slug, Some(name), routes)
        .map_err(|error| error.about("--save").hint("use a new name to create a bottle with them"))?;
    let path = addition.path.display().to_string();
    let shown = show_addition(output, &addition, "").map_err(SaveError::from);
    shown.and_then(|()| addition.write(host)).map_err(|error| {
        CliError::path("write", &addition.path, error).hint("add the routes shown above by hand")
    })?;
    output.note(format!("wrote {path}"));
    Ok(())
}

fn hint_next_step(slug: &Slug, any: bool, asked: bool, output: &Output) {
    if !any {
        output.note(format!("{slug} has no denied requests that routes can allow"));
    } else if asked {
        output.note("the proposal waits for your answer: `bottle supervise`");
    } else {
        output.note("nothing was changed; `--save BOTTLE` writes the routes to a bottle of yours");
    }
}
