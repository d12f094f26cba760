//! `bottle edit`: a manifest in the user's editor, looked over before it takes its place.

use bottle_contract::names::Name;

use super::choice::manifests;
use super::completions;
use super::editor::Draft;
use super::error::{CliError, Kind, answered};
use super::exit;
use super::output::Output;
use super::picker::{self, Choice, List};
use super::summary::from_home;
use super::terminal::{TerminalUser, interactive};
use crate::host::Host;
use crate::manifest::write_manifest::{path_of, write_manifest};
use crate::manifest::{
    AgentManifest, BottleLayer, Kind as ManifestKind, ManifestError, Manifests, Place, Source,
};
use crate::suggest::suggest;

/// Change an agent or a bottle in your editor
///
/// The editor is `$VISUAL`, else `$EDITOR`, else `vi`. A shipped manifest is copied to `$BOTTLE_HOME` first; a name
/// that is new makes a new file. What is wrong with it is said before it takes its place.
#[derive(Debug, clap::Args)]
pub(crate) struct Edit {
    /// The agent or the bottle; asked for when it is left out
    #[arg(add = completions::manifests())]
    name: Option<Name>,
    /// The agent of that name, not the bottle
    #[arg(long, conflicts_with = "bottle")]
    agent: bool,
    /// The bottle of that name, not the agent
    #[arg(long)]
    bottle: bool,
}

/// What a question leaves that was not answered.
const UNCHANGED: &str = "nothing was changed";

/// What a new file begins with.
const NEW_AGENT: &str = "\
---
# Who works. The bottle it works in, unless another is chosen:
# bottle: NAME
---
You are …
";
const NEW_BOTTLE: &str = "\
---
# Where an agent works, and what it may reach.
# extends: NAME
egress:
  routes: []
---
";

/// What becomes of a file that cannot be used.
enum Then {
    Again,
    Keep,
    Discard,
}

impl Edit {
    pub(crate) fn run(self, host: &Host, output: &Output) -> Result<u8, CliError> {
        if !interactive() {
            return Err(CliError::usage("an editor needs a terminal")
                .about("edit")
                .hint("change the file itself; `bottle info AGENT --explain` names it"));
        }
        let all = manifests(host);
        let (kind, name) = self.which(&all, output)?;
        let before = text_of(&all, kind, &name)?;
        let draft = Draft::new(&format!("{name}.md"), before.as_deref().unwrap_or(new_of(kind)))?;
        loop {
            draft.edit(host).map_err(unchanged)?;
            let after = draft.read()?;
            if before.as_deref() == Some(after.as_str()) {
                output.note("nothing was changed");
                return Ok(exit::DONE);
            }
            match look_over(kind, &name, &after, host) {
                Ok(()) => return keep(host, kind, &name, &after, output),
                Err(error) => {
                    output.error(&CliError::from(crate::resolve::ResolveError::from(error)));
                    match ask_then()? {
                        Then::Again => {}
                        Then::Keep => return keep(host, kind, &name, &after, output),
                        Then::Discard => {
                            output.note("nothing was changed");
                            return Ok(exit::DONE);
                        }
                    }
                }
            }
        }
    }

    /// Which file is meant: by the flag, by the one that there is, else by asking.
    fn which(&self, all: &Manifests, output: &Output) -> Result<(ManifestKind, Name), CliError> {
        let Some(name) = self.name.clone() else { return pick(all, output) };
        let wanted = match (self.agent, self.bottle) {
            (true, _) => Some(ManifestKind::Agent),
            (_, true) => Some(ManifestKind::Bottle),
            _ => None,
        };
        let is = |kind| all.find(kind, &name).is_ok_and(|found| found.is_some());
        match (wanted, is(ManifestKind::Agent), is(ManifestKind::Bottle)) {
            (Some(kind), ..) => Ok((kind, name)),
            (None, true, false) => Ok((ManifestKind::Agent, name)),
            (None, false, true) => Ok((ManifestKind::Bottle, name)),
            (None, there, _) => {
                let question = if there {
                    format!("There is an agent `{name}` and a bottle `{name}`. Which?")
                } else {
                    unknown(all, &name, output);
                    format!("What is the new `{name}` to be?")
                };
                let word = ask(|user| user.word(&question, &["agent", "bottle"]))?;
                Ok((if word == 0 { ManifestKind::Agent } else { ManifestKind::Bottle }, name))
            }
        }
    }
}

/// A name that nothing has may be a slip.
fn unknown(all: &Manifests, name: &Name, output: &Output) {
    let names: Vec<String> = [ManifestKind::Agent, ManifestKind::Bottle]
        .into_iter()
        .flat_map(|kind| all.list(kind).entries)
        .map(|entry| entry.name.to_string())
        .collect();
    match suggest(name.as_str(), names.iter().map(String::as_str)) {
        Some(near) => {
            output.note(format!("nothing is named `{name}` yet; did you mean `{near}`? Esc leaves"))
        }
        None => output.note(format!("nothing is named `{name}` yet")),
    }
}

fn pick(all: &Manifests, output: &Output) -> Result<(ManifestKind, Name), CliError> {
    let mut named: Vec<(ManifestKind, Name)> = Vec::new();
    let mut choices = Vec::new();
    for kind in [ManifestKind::Agent, ManifestKind::Bottle] {
        for entry in all.list(kind).entries {
            choices.push(Choice {
                name: entry.name.to_string(),
                about: all
                    .summary(kind, &entry.name)
                    .map_or_else(|error| error.message, Option::unwrap_or_default),
                mark: format!("{kind}, {}", entry.source.place.word()),
                ..Choice::default()
            });
            named.push((kind, entry.name));
        }
    }
    let asked = picker::pick("Change which manifest?", List::one(choices), output.err_styles());
    let chosen = answered(asked, UNCHANGED)?;
    chosen.first().and_then(|&index| named.get(index).cloned()).ok_or_else(cancelled)
}

/// What stands in the file that is meant; none for a new one. A project's agent is not the user's to change
/// from here: it is copied, and then theirs is the one that the project's shadows.
fn text_of(all: &Manifests, kind: ManifestKind, name: &Name) -> Result<Option<String>, CliError> {
    let found = all.find(kind, name).map_err(crate::resolve::ResolveError::from)?;
    let Some(entry) = found else { return Ok(None) };
    if entry.source.place == Place::Project {
        return Err(CliError::usage(format!("the agent `{name}` belongs to this project"))
            .about(entry.source)
            .hint(
                "change that file itself; what is in $BOTTLE_HOME under this name would not be seen here",
            ));
    }
    Ok(Some(all.text(kind, name, &entry.source).map_err(crate::resolve::ResolveError::from)?))
}

fn new_of(kind: ManifestKind) -> &'static str {
    match kind {
        ManifestKind::Agent => NEW_AGENT,
        ManifestKind::Bottle => NEW_BOTTLE,
    }
}

fn unchanged(error: CliError) -> CliError {
    CliError { message: format!("{}; {UNCHANGED}", error.message), ..error }
}

/// Whether it can be used, as far as the file itself says.
fn look_over(kind: ManifestKind, name: &Name, text: &str, host: &Host) -> Result<(), ManifestError> {
    let source = Source { place: Place::Home, path: path_of(&host.home, kind, name).into() };
    match kind {
        ManifestKind::Agent => AgentManifest::parse(name.clone(), source, text).map(drop),
        ManifestKind::Bottle => BottleLayer::parse(name.clone(), source, text).map(drop),
    }
}

fn keep(host: &Host, kind: ManifestKind, name: &Name, text: &str, output: &Output) -> Result<u8, CliError> {
    let path = path_of(&host.home, kind, name);
    write_manifest(&host.home, kind, name, text).map_err(|error| {
        CliError::failed(format!("cannot write {}: {error}", path.display())).about(path.display())
    })?;
    output.note(format!("wrote {}", from_home(&path.display().to_string(), &host.user_home)));
    // What the file names may be wrong, and is no reason to lose it.
    if kind == ManifestKind::Bottle
        && let Err(error) = crate::resolve::lineage(name, &manifests(host))
    {
        output.warn(error.message());
    }
    Ok(exit::DONE)
}

fn ask_then() -> Result<Then, CliError> {
    let word = ask(|user| {
        user.word("Edit again, keep it all the same, or discard the change?", &["edit", "keep", "discard"])
    })?;
    Ok(match word {
        0 => Then::Again,
        1 => Then::Keep,
        _ => Then::Discard,
    })
}

fn ask<T>(question: impl FnOnce(&mut TerminalUser) -> std::io::Result<Option<T>>) -> Result<T, CliError> {
    answered(TerminalUser::find().and_then(|mut user| question(&mut user)), UNCHANGED)
}

fn cancelled() -> CliError {
    CliError::new(Kind::Interrupted, UNCHANGED)
}
