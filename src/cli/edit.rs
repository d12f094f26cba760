//! `bottle edit`: opens a manifest in the user's editor, and checks the edited text before replacing the file.

use bottle_host::Host;
use bottle_lib::text::from_home;
use bottle_manifest::resolve::{ResolveError, lineage};
use bottle_manifest::write_manifest::{path_of, write_manifest};
use bottle_manifest::{
    AgentManifest, BottleLayer, Kind as ManifestKind, ManifestError, Manifests, Place, Source,
};
use bottle_policy::names::Name;

use super::candidates;
use super::choice::manifests;
use crate::console::editor::Draft;
use crate::console::error::{CliError, require_answer};
use crate::console::exit;
use crate::console::output::Output;
use crate::console::terminal::{TerminalUser, interactive};
use crate::screens::picker::{self, Choice};
use bottle_text::suggest::suggest;

/// Change an agent or bottle manifest in your editor
///
/// Uses `$VISUAL`, then `$EDITOR`, then `vi`. A changed shipped manifest is written to `$BOTTLE_HOME`. A name without a
/// manifest creates a file. Bottle reports errors in the edited text before it replaces the file, and problems with the
/// manifests that a bottle extends afterwards.
#[derive(Debug, clap::Args)]
pub(crate) struct Edit {
    /// The name of the agent or bottle manifest; asks when omitted
    #[arg(add = candidates::manifests())]
    name: Option<Name>,
    /// Edit the agent manifest of this name, not the bottle manifest
    #[arg(long, conflicts_with = "bottle")]
    agent: bool,
    /// Edit the bottle manifest of this name, not the agent manifest
    #[arg(long)]
    bottle: bool,
}

/// The message when the user cancels a question.
const UNCHANGED: &str = "nothing was changed";

/// The template of a new agent manifest.
const NEW_AGENT: &str = "\
---
# The agent's default bottle:
# bottle: NAME
---
You are …
";
/// The template of a new bottle manifest.
const NEW_BOTTLE: &str = "\
---
# What an agent in this bottle may reach.
# extends: NAME
egress:
  routes: []
---
";

impl Edit {
    pub(crate) fn run(self, host: &Host, output: &Output) -> Result<u8, CliError> {
        if !interactive() {
            return Err(CliError::usage("an editor needs a terminal")
                .about("edit")
                .hint("edit the file directly; `bottle info AGENT --explain` shows its path"));
        }
        let all = manifests(host);
        let (kind, name) = self.select(&all, output)?;
        let before = text_of(&all, kind, &name)?;
        let draft = Draft::new(host, &format!("{name}.md"), before.as_deref().unwrap_or(template(kind)))?;
        loop {
            draft.edit(host).map_err(unchanged)?;
            let after = draft.read()?;
            if before.as_deref() == Some(after.as_str()) {
                break;
            }
            let Err(error) = check(kind, &name, &after, host) else {
                return save(host, kind, &name, &after, output);
            };
            output.error(&CliError::from(ResolveError::from(error)));
            let question = "Edit again, keep it anyway, or discard the change?";
            match ask(|user| user.word(question, &["edit", "keep", "discard"]))? {
                0 => {}
                1 => return save(host, kind, &name, &after, output),
                _ => break,
            }
        }
        output.note(UNCHANGED);
        Ok(exit::DONE)
    }

    /// Decides which manifest to edit: by the flag, by the existing files, or by asking the user.
    fn select(&self, all: &Manifests, output: &Output) -> Result<(ManifestKind, Name), CliError> {
        let Some(name) = self.name.clone() else { return pick(all, output) };
        let is = |kind| all.find(kind, &name).is_ok_and(|found| found.is_some());
        match (self.agent, self.bottle, is(ManifestKind::Agent), is(ManifestKind::Bottle)) {
            (true, ..) | (_, false, true, false) => Ok((ManifestKind::Agent, name)),
            (_, true, ..) | (.., false, true) => Ok((ManifestKind::Bottle, name)),
            (_, _, there, _) => {
                let question = if there {
                    format!("There is an agent `{name}` and a bottle `{name}`. Which?")
                } else {
                    suggest_name(all, &name, output);
                    format!("Create `{name}` as what?")
                };
                let word = ask(|user| user.word(&question, &["agent", "bottle"]))?;
                Ok((if word == 0 { ManifestKind::Agent } else { ManifestKind::Bottle }, name))
            }
        }
    }
}

/// Suggests the nearest existing name, because an unknown name may be a typo.
fn suggest_name(all: &Manifests, name: &Name, output: &Output) {
    let names: Vec<String> = [ManifestKind::Agent, ManifestKind::Bottle]
        .into_iter()
        .flat_map(|kind| all.list(kind).entries)
        .map(|entry| entry.name.to_string())
        .collect();
    let near = suggest(name.as_str(), names.iter().map(String::as_str));
    let near = near.map(|near| format!("; did you mean `{near}`? Esc cancels")).unwrap_or_default();
    output.note(format!("nothing is named `{name}` yet{near}"));
}

fn pick(all: &Manifests, output: &Output) -> Result<(ManifestKind, Name), CliError> {
    let mut items = Vec::new();
    for kind in [ManifestKind::Agent, ManifestKind::Bottle] {
        for entry in all.list(kind).entries {
            let choice = Choice {
                name: entry.name.to_string(),
                about: all
                    .summary(kind, &entry.name)
                    .map_or_else(|error| error.message, Option::unwrap_or_default),
                mark: format!("{kind}, {}", entry.source.place.word()),
                ..Choice::default()
            };
            items.push(((kind, entry.name), choice));
        }
    }
    require_answer(picker::pick_one("Change which manifest?", items, output.err_styles()), UNCHANGED)
}

/// Returns the text of a manifest, or `None` for a new manifest. Refuses an agent manifest of a project, because the
/// project's manifest would shadow a copy in `$BOTTLE_HOME`.
fn text_of(all: &Manifests, kind: ManifestKind, name: &Name) -> Result<Option<String>, CliError> {
    let found = all.find(kind, name).map_err(ResolveError::from)?;
    let Some(entry) = found else { return Ok(None) };
    if entry.source.place == Place::Project {
        return Err(CliError::usage(format!("the agent `{name}` belongs to this project"))
            .about(entry.source)
            .hint("edit that file directly: it hides a file of this name in $BOTTLE_HOME"));
    }
    Ok(Some(all.text(kind, name, &entry.source).map_err(ResolveError::from)?))
}

fn template(kind: ManifestKind) -> &'static str {
    match kind {
        ManifestKind::Agent => NEW_AGENT,
        ManifestKind::Bottle => NEW_BOTTLE,
    }
}

fn unchanged(error: CliError) -> CliError {
    error.reworded(|message| format!("{message}; {UNCHANGED}"))
}

/// Parses the manifest without loading the manifests that it refers to.
fn check(kind: ManifestKind, name: &Name, text: &str, host: &Host) -> Result<(), ManifestError> {
    let source = Source { place: Place::Home, path: path_of(&host.home, kind, name).into() };
    match kind {
        ManifestKind::Agent => AgentManifest::parse(name.clone(), source, text).map(drop),
        ManifestKind::Bottle => BottleLayer::parse(name.clone(), source, text).map(drop),
    }
}

fn save(host: &Host, kind: ManifestKind, name: &Name, text: &str, output: &Output) -> Result<u8, CliError> {
    let path = path_of(&host.home, kind, name);
    write_manifest(&host.home, kind, name, text).map_err(|error| CliError::path("write", &path, error))?;
    output.note(format!("wrote {}", from_home(&path.display().to_string(), &host.user_home)));
    // A reference to a missing manifest causes a warning, not an error, so that the edit is not lost.
    if kind == ManifestKind::Bottle
        && let Err(error) = lineage(name, &manifests(host))
    {
        output.warn(error.message());
    }
    Ok(exit::DONE)
}

fn ask<T>(question: impl FnOnce(&mut TerminalUser) -> std::io::Result<Option<T>>) -> Result<T, CliError> {
    require_answer(TerminalUser::find().and_then(|mut user| question(&mut user)), UNCHANGED)
}
