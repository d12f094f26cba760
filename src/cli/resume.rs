//! `bottle resume`: starts a preserved bottle again, with the same name, agent and bottle manifests.
//!
//! ```text
//! record ─► origin: kept files │ snapshot │ new, with a warning ─► plan ─► changed manifests ─► launch
//! ```
//! A resumed bottle gets new values of everything that belongs to a single launch: the certificate authority,
//! the proxy, the secrets.

use bottle_contract::names::{Name, Slug};

use super::candidates;
use super::choice::{manifests, resolved};
use super::error::CliError;
use super::exit;
use super::launch::child::require_no_parent;
use super::launch::manifest_changes::{changed, changes};
use super::launch::prepare::prepare_failed;
use super::launch::{
    ConfirmedLaunch, LaunchOptions, backend, git_directory, live, preflight, require_host_keys,
};
use super::output::Output;
use super::select_bottle::Question;
use super::session::Signals;
use super::style::label_color_parser;
use super::terminal;
use crate::backend::{Backend, Origin, Snapshot};
use crate::cli::own_rules;
use crate::cli::runtime::block_on;
use crate::host::git_user::HostGitUser;
use crate::host::{Host, Settings};
use crate::instance::record::Record;
use crate::instance::{State, Store, engines};
use crate::launch::order::Resumed;
use crate::library::budget::require_unspent;
use crate::library::record::{backend_of, preserved};
use crate::library::snapshot_selector::SnapshotSelector;
use crate::plan::{self, Flags, GitDirectory, LiveDirectory, Workspace};

/// Start a preserved bottle again
///
/// Starts from the bottle's preserved files, otherwise from its snapshot. If both are missing, builds the
/// bottle anew, and copies your files in again. The agent continues its last conversation if it can. Exits
/// with the agent's exit code, as `bottle start` does.
#[derive(Debug, clap::Args)]
pub(crate) struct Resume {
    /// The bottle, as `bottle list` shows it; asks when omitted
    #[arg(add = candidates::preserved())]
    slug: Option<Slug>,
    /// Start from the snapshot of this name, otherwise from the newest one; discards the bottle's preserved
    /// files
    #[arg(long, value_name = "NAME", num_args = 0..=1)]
    snapshot: Option<Option<Name>>,
    /// Use this bottle manifest instead of those of the last start; repeat to merge several, in order
    #[arg(long = "bottle", value_name = "BOTTLE", add = candidates::bottles())]
    bottles: Vec<Name>,
    /// Set the colour of the bottle's name in lists
    #[arg(long, value_parser = label_color_parser(), value_name = "COLOUR")]
    color_label: Option<String>,
    #[command(flatten)]
    launch: LaunchOptions,
}

/// The files that the bottle starts from.
struct StartPoint {
    origin: Origin,
    /// Whether starting from them discards preserved files.
    discards: bool,
}

const BOTTLE_QUESTION: Question = Question {
    prompt: "Resume which bottle?",
    suits: |state| matches!(state, State::Preserved(_)),
    none: "no bottle is preserved",
    hint: "`bottle commit` saves a snapshot of a running bottle",
};

impl Resume {
    pub(crate) fn run(mut self, host: &Host, output: &Output) -> Result<u8, CliError> {
        require_no_parent(host)?;
        let slug = BOTTLE_QUESTION.select(self.slug.take(), host, output)?;
        block_on(async {
            let resumed = self.resume(&slug, host, &mut Signals::catch()?, output).await;
            resumed.map_err(|error| error.about_if_unset(&slug))
        })
    }

    async fn resume(
        &self,
        slug: &Slug,
        host: &Host,
        signals: &mut Signals,
        output: &Output,
    ) -> Result<u8, CliError> {
        let settings = Settings::load(host)?;
        own_rules::load(host, output)?;
        let record = preserved(host, slug).await?;
        // The working directory of the first start decides which project's agents are found, and is copied if the
        // workspace has to be created again.
        let host = &Host { cwd: record.start_directory(), ..host.clone() };
        let backend = backend_of(host, &record)?;
        let start_point = self.start_point(host, &*backend, &record, output).await?;
        let bottles = if self.bottles.is_empty() { &record.bottles } else { &self.bottles };
        let resolved = resolved(&manifests(host), record.agent.clone(), bottles.clone())?;
        let live = record.live().map(|live| live::check_again(host, slug, live)).transpose()?;
        let (live, notes) = live.map(|live| (live.directory, live.warnings)).unzip();
        let mut flags = self.flags(host, &settings, &record, &start_point.origin, live);
        flags.git_directories = self.git_directories(host, &record, &flags, signals, output).await?;
        // The slug is given, so no random bytes are needed.
        let build = |flags: &Flags| plan::build(host, &resolved.manifest, flags, &mut |_| {});
        let plan = build(&flags)?;
        let anew = build(&Flags { resumed: false, ..flags })?.agent.argv;
        backend::require(&*backend, &plan).await?;
        require_host_keys(&plan)?;
        require_unspent(host, &settings, &plan, |text| output.warn(text))?;
        let preview = backend.preview(&plan).await.map_err(|error| prepare_failed(error, &plan))?;
        let changes = changes(host, slug, &plan);
        let view = preflight::View {
            resolved: &resolved,
            plan: &plan,
            preview: &preview,
            backend: &*backend,
            home: &host.user_home,
            files: match &start_point.origin {
                Origin::New => None,
                Origin::Kept => Some("its preserved files".to_owned()),
                Origin::Snapshot(snapshot) => {
                    Some(format!("the snapshot {}", SnapshotSelector::of(snapshot)))
                }
            },
            copied: match &start_point.origin {
                Origin::New => preflight::sources(&plan, &preview, signals).await?,
                Origin::Kept | Origin::Snapshot(_) => Vec::new(),
            },
            live: notes.unwrap_or_default(),
        };
        if self.launch.dry_run {
            return show(&view, changes.as_deref(), output);
        }
        if !self.confirm(&view, changes.as_deref(), start_point.discards, signals, output).await? {
            output.note("nothing was started");
            return Ok(exit::DONE);
        }
        let resumed = Some(Resumed { anew, give_back: start_point.origin == Origin::New });
        let shown_notes = preview.notes;
        let confirmed = ConfirmedLaunch { backend, plan, shown_notes, origin: start_point.origin, resumed };
        confirmed.launch(host, &settings, signals, output).await
    }

    /// Chooses preserved files, which are newer than the snapshots, unless the user asks for a snapshot.
    async fn start_point(
        &self,
        host: &Host,
        backend: &dyn Backend,
        record: &Record,
        output: &Output,
    ) -> Result<StartPoint, CliError> {
        let (store, slug) = (Store::of(host), &record.slug);
        let directory = store.directory(slug);
        let layers = async { Ok(record.kept && engines::has_layers(backend, record).await?) };
        // The engine answers both questions at once. The answer about the layers counts only if it is the right engine.
        let (right, kept) = tokio::join!(engines::require(backend, &directory, record), layers);
        let kept = right.and(kept)?;
        let list = store.snapshots(slug).map_err(|error| CliError::state(error.to_string()))?;
        if kept && self.snapshot.is_none() {
            return Ok(StartPoint { origin: Origin::Kept, discards: false });
        }
        let there = backend.snapshots().await?;
        let mut newest_first = list.snapshots.iter().map(|entry| &entry.snapshot).rev();
        let exists = |own: &&Snapshot| there.iter().any(|found| found.is_same(own));
        let start_from = |snapshot: &Snapshot| {
            Ok(StartPoint { origin: Origin::Snapshot(snapshot.clone()), discards: kept })
        };
        match &self.snapshot {
            Some(name) => {
                let found = match name {
                    Some(_) => list.find(name.as_ref()).filter(exists),
                    None => newest_first.find(exists),
                };
                let was_deleted = match name {
                    Some(_) => list.find(name.as_ref()).is_some(),
                    None => !list.snapshots.is_empty(),
                };
                found.map_or_else(|| Err(no_snapshot(slug, name.as_ref(), was_deleted, kept)), start_from)
            }
            None => {
                let newest = newest_first.clone().next();
                if newest.is_none() && record.has_only_conversation() {
                    output.note(format!("{slug} is made anew and continues its conversation"));
                    return Ok(StartPoint { origin: Origin::New, discards: false });
                }
                let Some(found) = newest_first.find(exists) else {
                    let reason =
                        if newest.is_some() { "its snapshot was deleted" } else { "its files are missing" };
                    output.warn(format!("{slug}: {reason}, so it is built anew"));
                    return Ok(StartPoint { origin: Origin::New, discards: false });
                };
                if record.kept {
                    let why = "its preserved files were removed by something else";
                    output.warn(format!("{slug}: {why}, so it starts from its snapshot"));
                }
                if newest != Some(found) {
                    let older = SnapshotSelector::of(found);
                    output
                        .warn(format!("{slug}: its newest snapshot was deleted, so it starts from {older}"));
                }
                start_from(found)
            }
        }
    }

    fn flags(
        &self,
        host: &Host,
        settings: &Settings,
        record: &Record,
        origin: &Origin,
        live: Option<LiveDirectory>,
    ) -> Flags {
        let workspace = match (origin, record.copied_cwd, record.copied_all) {
            (Origin::New, true, _) if live.is_some() => Workspace::Repository,
            (Origin::New, true, true) => Workspace::CopyAll,
            (Origin::New, true, false) => Workspace::Copy,
            _ => Workspace::Empty,
        };
        Flags {
            slug: Some(record.slug.clone()),
            label: record.label.clone(),
            color: self.color_label.clone().or_else(|| record.color.clone()),
            workspace,
            live,
            repository: record.repository(),
            directories: record.directories.clone(),
            backend: record.backend.clone(),
            resumed: true,
            image: match origin {
                // The bottle is built anew, as its manifest says.
                Origin::New => None,
                _ => record.image.clone(),
            },
            git_user: if record.copied_cwd {
                HostGitUser::of(host, &record.cwd)
            } else {
                HostGitUser::default()
            },
            ..self.launch.flags(settings)
        }
    }

    /// The confirmed git directories outside of the directories that are copied again.
    async fn git_directories(
        &self,
        host: &Host,
        record: &Record,
        flags: &Flags,
        signals: &mut Signals,
        output: &Output,
    ) -> Result<Vec<GitDirectory>, CliError> {
        if flags.workspace == Workspace::Empty {
            return Ok(Vec::new());
        }
        let directories = record.directories.iter().map(|directory| &directory.path);
        let one = record.directories.is_empty().then_some(&record.cwd);
        let asks = self.launch.asks(output);
        let asks = git_directory::Asks { git_directories: asks, lenders: asks };
        git_directory::confirm(directories.chain(one), host, &self.launch.git_dirs, asks, signals).await
    }

    /// Asks the user if manifests changed since the last start, or if files would be discarded.
    async fn confirm(
        &self,
        view: &preflight::View<'_>,
        changes: Option<&str>,
        discards: bool,
        signals: &mut Signals,
        output: &Output,
    ) -> Result<bool, CliError> {
        let slug = &view.plan.identity.slug;
        let asks = !self.launch.yes && terminal::interactive();
        if discards && !self.launch.yes && !asks {
            return Err(CliError::usage("cannot ask whether to discard newer files: there is no terminal")
                .about("--yes")
                .hint(format!("`bottle resume {slug}` starts from these files; `--yes` discards them")));
        }
        if let Some(changes) = changes
            && (asks || !output.quiet && !output.json)
        {
            output.write_error_lines(&changed(changes, output.err_styles()));
        }
        for line in preflight::warnings(view) {
            output.note(line);
        }
        let question = match (asks, changes, discards) {
            (false, ..) | (true, None, false) => return Ok(true),
            (true, _, true) => format!("Discard the files preserved since the snapshot of {slug}?"),
            (true, Some(_), false) => format!("Resume {slug} on {}?", view.plan.backend),
        };
        preflight::ask(question, signals).await
    }
}

/// The error for `--snapshot` without such a snapshot. `was_deleted` says whether there was one.
fn no_snapshot(slug: &Slug, name: Option<&Name>, was_deleted: bool, kept: bool) -> CliError {
    let snapshot = match name {
        Some(name) => format!("the snapshot {slug}@{name}"),
        None => format!("the snapshot of {slug}"),
    };
    let error = match (was_deleted, name) {
        (true, _) => {
            let alternative = if kept { "starts from its preserved files" } else { "starts without it" };
            CliError::state(format!("{snapshot} was deleted"))
                .hint(format!("`bottle resume {slug}` {alternative}"))
        }
        (false, Some(name)) => CliError::state(format!("there is no snapshot {slug}@{name}"))
            .hint("`bottle snapshots` shows all snapshots"),
        (false, None) => CliError::state(format!("there is no snapshot of {slug}"))
            .hint("`bottle snapshots` shows all snapshots"),
    };
    error.about("--snapshot")
}

fn show(view: &preflight::View<'_>, changes: Option<&str>, output: &Output) -> Result<u8, CliError> {
    preflight::show_dry_run(view, true, output)?;
    if let Some(changes) = changes
        && !output.json
    {
        output.print(&changed(changes, output.styles()))?;
    }
    Ok(exit::DONE)
}
