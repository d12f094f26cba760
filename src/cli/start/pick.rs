//! Asks on a terminal for choices that the command line does not give: the agent, its bottles, a name and a
//! colour.
//!
//! If the command line names an agent and the agent has default bottles, there is no question. The preflight
//! then shows the choices.

use std::cmp::Reverse;

use bottle_host::Host;
use bottle_instance::Store;
use bottle_lib::launch::start::StartOrder;
use bottle_lib::registry;
use bottle_lib::text::names;
use bottle_manifest::provider::{self, ProviderConfig};
use bottle_manifest::resolve::{self, ResolveError, Resolved, Selection};
use bottle_manifest::{Kind as ManifestKind, Manifests, Place};
use bottle_policy::names::{Name, Slug};

use crate::cli::choice::manifests;
use crate::cli::launch::preflight::answer;
use crate::console::error::CliError;
use crate::console::output::{Output, Styles};
use crate::console::signals::Signals;
use crate::console::style::LABEL_COLORS;
use crate::console::terminal::TerminalUser;
use crate::screens::picker::{self, Choice, List};

/// The choices for which a user can be asked.
#[derive(Debug, Clone)]
pub(super) struct Choices {
    pub(super) agent: Option<Name>,
    pub(super) bottles: Vec<Name>,
    pub(super) label: Option<String>,
    pub(super) color: Option<String>,
}

impl Choices {
    /// Copies these choices into an order.
    pub(super) fn apply(&self, order: &mut StartOrder) {
        order.bottles.clone_from(&self.bottles);
        order.flags.label.clone_from(&self.label);
        order.flags.color.clone_from(&self.color);
    }

    /// Asks the user for missing choices.
    pub(super) async fn ask_missing(
        &mut self,
        host: &Host,
        signals: &mut Signals,
        output: &Output,
    ) -> Result<(), CliError> {
        let all = manifests(host);
        let styles = output.err_styles();
        let everything = self.agent.is_none();
        if everything {
            let agent = agent(host, &all, styles, signals).await?;
            output.note(format!("agent {agent}"));
            self.agent = Some(agent);
        }
        let Some(agent) = &self.agent else { return Ok(()) };
        if self.bottles.is_empty() && (everything || has_to_choose(agent, &all)) {
            self.bottles = bottles(agent, None, &all, styles, signals).await?;
            note_bottles(&self.bottles, output);
        }
        if everything && self.label.is_none() {
            self.label = label(host, agent, signals).await?;
        }
        if everything && self.label.is_some() && self.color.is_none() {
            self.color = color(signals).await?;
        }
        Ok(())
    }

    /// Asks again for the bottles, the label and the colour. The current bottles are preselected.
    pub(super) async fn ask_again(
        &mut self,
        host: &Host,
        resolved: &Resolved,
        signals: &mut Signals,
        output: &Output,
    ) -> Result<(), CliError> {
        let manifest = &resolved.manifest;
        let chosen = Some(&manifest.bottles[..]);
        let agent = &manifest.agent.name;
        self.bottles = bottles(agent, chosen, &manifests(host), output.err_styles(), signals).await?;
        note_bottles(&self.bottles, output);
        self.label = label(host, agent, signals).await?;
        self.color = if self.label.is_some() { color(signals).await? } else { None };
        Ok(())
    }
}

/// Prints the chosen bottles, because the list of bottles is no longer on the screen.
fn note_bottles(bottles: &[Name], output: &Output) {
    output.note(format!("bottles {}", names(bottles)));
}

/// Whether the user must choose bottles. This is the case if the agent names no default bottles, or if its manifest
/// comes from a project and therefore only suggests bottles. Returns false for a missing or unreadable agent, because
/// the resolution of the agent reports the error later.
fn has_to_choose(agent: &Name, all: &Manifests) -> bool {
    let found = all.agent(agent).ok().flatten();
    found.is_some_and(|agent| agent.bottles.is_empty() || agent.source.place == Place::Project)
}

async fn agent(
    host: &Host,
    all: &Manifests,
    styles: Styles,
    signals: &mut Signals,
) -> Result<Name, CliError> {
    let names = all.list(ManifestKind::Agent).entries.into_iter().map(|entry| entry.name);
    let mut described: Vec<(Rank, Name, Choice)> =
        names.map(|name| describe_agent(host, all, name)).collect();
    described.sort_by(|a, b| (a.0, &a.1).cmp(&(b.0, &b.1)));
    let items = described.into_iter().map(|(_, name, choice)| (name, choice)).collect();
    answer(signals, move || picker::pick_one("Which agent?", items, styles)).await
}

/// The sort key of an agent. Usable agents come first. Among usable agents, those with the user's own manifests come
/// first.
type Rank = (u8, Reverse<Option<Place>>);

/// Returns the rank of an agent and its list item.
fn describe_agent(host: &Host, all: &Manifests, name: Name) -> (Rank, Name, Choice) {
    let place = place(all, ManifestKind::Agent, &name);
    let rank = |condition: u8| (condition, Reverse(place));
    let mut choice = Choice { name: name.to_string(), mark: place_name(place), ..Choice::default() };
    match all.summary(ManifestKind::Agent, &name) {
        Ok(summary) => choice.about = summary.unwrap_or_default(),
        Err(error) => return (rank(2), name, broken(choice, &error.into())),
    }
    let selection = Selection { agent: name.clone(), bottles: Vec::new() };
    match resolve::resolve(&selection, all) {
        Ok(resolved) => {
            let hosts: Vec<String> =
                resolved.manifest.egress.routes.iter().map(|route| route.value.host.to_string()).collect();
            let reaches = if hosts.is_empty() { "nothing".to_owned() } else { hosts.join(", ") };
            choice.detail = vec![
                format!("bottles: {}", names(&resolved.manifest.bottles)),
                format!("reaches: {reaches}"),
            ];
            let program = command(&resolved.manifest.provider);
            if program.is_some_and(|program| registry::has_program(host, &program)) {
                (rank(0), name, choice)
            } else {
                choice.detail.push(
                    "its program is not installed on this machine; on Docker its image has it".to_owned(),
                );
                (rank(1), name, choice)
            }
        }
        // An agent without a default bottle is usable, because the next question asks for a bottle.
        Err(ResolveError::NoBottle { .. }) => (rank(0), name, choice),
        Err(error) => (rank(2), name, broken(choice, &error)),
    }
}

/// Marks an item as unusable and shows the error in the list. The position of the error is too long for the list, so
/// only the details contain the position.
fn broken(choice: Choice, error: &ResolveError) -> Choice {
    let about = match error {
        ResolveError::Manifest(error) => error.message.clone(),
        other => other.message(),
    };
    let detail = std::iter::once(error.message()).chain(error.hint()).collect();
    Choice { about, detail, broken: true, ..choice }
}

/// Returns the program that runs for an agent with this provider.
fn command(provider: &ProviderConfig) -> Option<String> {
    let run = provider::Run {
        provider,
        name: "",
        color: None,
        prompt: "",
        task: None,
        arguments: &[],
        terminal: true,
        supervise: false,
        resumed: false,
    };
    provider::for_template(provider.template.value).argv(&run).ok()?.into_iter().next()
}

/// Asks for the bottles and their order. Preselects the given bottles, otherwise the agent's default bottles.
async fn bottles(
    agent: &Name,
    chosen: Option<&[Name]>,
    all: &Manifests,
    styles: Styles,
    signals: &mut Signals,
) -> Result<Vec<Name>, CliError> {
    let found = all.agent(agent).map_err(ResolveError::from)?;
    let suggested = found.as_ref().is_some_and(|found| found.source.place == Place::Project);
    let own: Vec<Name> =
        found.map(|found| found.bottles.into_iter().map(|name| name.value).collect()).unwrap_or_default();
    let chosen = chosen.unwrap_or(&own).to_vec();
    let others = all.list(ManifestKind::Bottle).entries.into_iter().map(|entry| entry.name);
    let mut names = chosen.clone();
    names.extend(own.iter().filter(|name| !chosen.contains(name)).cloned());
    names.extend(others.filter(|name| !chosen.contains(name) && !own.contains(name)));
    let mark = if suggested { "this project suggests" } else { "the agent's own" };
    let choices: Vec<Choice> =
        names.iter().map(|name| describe_bottle(all, name, own.contains(name).then_some(mark))).collect();
    let list = List::several(choices, (0..chosen.len()).collect());
    let question = format!("Which bottles for {agent}, in order?");
    let chosen = answer(signals, move || picker::pick(&question, list, styles)).await?;
    Ok(chosen.into_iter().filter_map(|index| names.get(index).cloned()).collect())
}

fn describe_bottle(all: &Manifests, name: &Name, mark: Option<&str>) -> Choice {
    let mark = mark.map_or_else(|| place_name(place(all, ManifestKind::Bottle, name)), str::to_owned);
    let choice = Choice { name: name.to_string(), mark, ..Choice::default() };
    let summary = match all.summary(ManifestKind::Bottle, name) {
        Ok(summary) => summary.unwrap_or_default(),
        Err(error) => return broken(choice, &error.into()),
    };
    match resolve::lineage(name, all) {
        Ok(line) => Choice { about: summary, detail: vec![format!("layers: {}", names(&line))], ..choice },
        Err(error) => broken(choice, &error),
    }
}

fn place(all: &Manifests, kind: ManifestKind, name: &Name) -> Option<Place> {
    all.find(kind, name).ok().flatten().map(|entry| entry.source.place)
}

fn place_name(place: Option<Place>) -> String {
    place.map(|place| place.word().to_owned()).unwrap_or_default()
}

/// Asks for an unused label. Returns `None` for a random label.
async fn label(host: &Host, agent: &Name, signals: &mut Signals) -> Result<Option<String>, CliError> {
    let mut question = format!("Its name, or Enter for {agent} and five random characters:");
    loop {
        let asked = question.clone();
        let typed = answer(signals, move || TerminalUser::find()?.line(&asked)).await?;
        if typed.trim().is_empty() {
            return Ok(None);
        }
        question = match Slug::from_label(&typed) {
            Ok(slug) if Store::of(host).state(&slug).is_none() => return Ok(Some(typed)),
            Ok(slug) => format!("There is a bottle named {slug}; another name, or Enter:"),
            Err(error) => format!("{error}; another name, or Enter:"),
        };
    }
}

async fn color(signals: &mut Signals) -> Result<Option<String>, CliError> {
    let words: Vec<&str> = std::iter::once("none").chain(LABEL_COLORS.map(|(name, ..)| name)).collect();
    let asked = words.clone();
    let chosen =
        answer(signals, move || TerminalUser::find()?.word("The colour of its name?", &asked)).await?;
    Ok(words.get(chosen).filter(|_| chosen > 0).map(ToString::to_string))
}
