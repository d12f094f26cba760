//! `bottle learn`: derives routes from denied requests.
//!
//! The routes become a proposal in the bottle's supervise queue, as if the bottle's agent had made it. The
//! user answers it with `bottle supervise`.

use std::time::Duration;

use bottle_contract::names::{Name, Slug};
use bottle_contract::proposal;
use bottle_contract::queue::{Question, Tool};
use bottle_contract::session::bundle::Routes;
use bottle_host::Host;
use bottle_instance::learn::{self, Learned};
use bottle_instance::{State, Store};
use bottle_keeper::decisions;
use bottle_keeper::protocol::KeeperRequest;
use bottle_lib::report::{LearnReport, LearntHost, LeftOut};
use bottle_lib::saved_routes::{Addition, SaveError};
use bottle_queue::question;

use super::candidates;
use super::connect::{carry_out, connect, no_such_bottle};
use super::route_addition::show_addition;
use crate::console::error::CliError;
use crate::console::exit;
use crate::console::output::{Output, one_line, times};
use crate::console::runtime::block_on;

/// How long the proposal waits for an answer before it expires.
const PROPOSAL_TTL: Duration = Duration::from_secs(24 * 3600);

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
        let store = Store::of(host);
        let state = store.state(slug).ok_or_else(|| no_such_bottle(&store, slug))?;
        let (learned, now) = learned(host, slug)?;
        let asked = match &learned.routes {
            Some(routes) if !self.dry_run && self.save.is_none() && matches!(state, State::Alive(_)) => {
                propose(host, slug, proposal_of(&learned, routes, &now))?;
                true
            }
            _ => false,
        };
        let opens = opens(slug, &now, &learned)?;
        let report = to_report(slug, &learned, &opens, asked);
        output.json_or(&report, || show(slug, &learned, &opens, output))?;
        match (&self.save, learned.routes) {
            (Some(name), Some(routes)) => save(host, slug, name, routes, output)?,
            (_, routes) => hint_next_step(slug, routes.is_some(), asked, output),
        }
        Ok(exit::DONE)
    }
}

/// Derives routes from the bottle's log. Also returns the routes that the bottle ran with.
fn learned(host: &Host, slug: &Slug) -> Result<(Learned, Routes), CliError> {
    let bad = |message: String| CliError::state(message).about(slug);
    learn::of_bottle(&Store::of(host).directory(slug))
        .map_err(|error| bad(format!("cannot read the denied requests of {slug}: {error}")))?
        .ok_or_else(|| bad("the routes of this bottle are unknown".to_owned()))
}

/// Lists the requests that the learned routes would newly allow.
fn opens(slug: &Slug, now: &Routes, learned: &Learned) -> Result<Vec<String>, CliError> {
    let Some(routes) = &learned.routes else { return Ok(Vec::new()) };
    let merged = proposal::merge(&now.table, routes)
        .map_err(|error| CliError::state(format!("cannot add the learned routes: {error}")).about(slug))?;
    Ok(decisions::gains(&now.table, &merged))
}

/// Creates the proposal, with a justification for the user.
fn proposal_of(learned: &Learned, routes: &proposal::Proposal, now: &Routes) -> Question {
    let times: usize = learned.hosts.iter().map(|(_, times)| times).sum();
    let mut why = format!("learned from {times} denied requests");
    why.extend(learned.rules.iter().map(|rule| format!("\n- {rule}")));
    let why = why.chars().take(4_000).collect();
    Question {
        revision: Some(now.revision),
        ..question(Tool::EgressAllow, routes.render(), why, PROPOSAL_TTL)
    }
}

fn propose(host: &Host, slug: &Slug, question: Question) -> Result<(), CliError> {
    let request = KeeperRequest::Ask(Box::new(question));
    let asked = block_on(async { Ok(carry_out(&connect(host, slug).await?, &request).await?) });
    asked.map_err(|error| {
        let error = error.about(slug);
        if error.failure.hint.is_some() {
            return error;
        }
        let queue = host.home.join("queue").join(slug.as_str());
        error.hint(format!(
            "the queue is in {}; `bottle learn {slug} --save BOTTLE` saves the routes instead",
            queue.display()
        ))
    })
}

fn to_report(slug: &Slug, learned: &Learned, opens: &[String], asked: bool) -> LearnReport {
    let host = |(host, times): &(String, usize)| LearntHost { host: host.clone(), times: *times };
    let left = |(host, times, why): &(String, usize, String)| LeftOut {
        host: host.clone(),
        times: *times,
        why: why.clone(),
    };
    LearnReport {
        slug: slug.to_string(),
        routes: learned.routes.as_ref().map(proposal::Proposal::render),
        opens: opens.to_vec(),
        hosts: learned.hosts.iter().map(host).collect(),
        rules: learned.rules.clone(),
        left_out: learned.left_out.iter().map(left).collect(),
        asked,
    }
}

fn show(slug: &Slug, learned: &Learned, opens: &[String], output: &Output) -> Result<(), CliError> {
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
    list(&mut lines, "The routes allow:", opens.to_vec());
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

/// Shows the new lines, and writes them to one of the user's manifests.
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
