//! Starts or resumes the bottle of a task, without a question.

use std::path::Path;

use bottle_host::environment_settings::Choices;
use bottle_host::{Host, Settings};
use bottle_instance::State;
use bottle_plan::Flags;
use bottle_policy::names::{Name, Slug};
use indicatif::BinaryBytes;
use rustix::fs::statvfs;

use super::home::{Environments, locked};
use crate::connect::settled;
use crate::failure::Failure;
use crate::launch::resume::ResumeOrder;
use crate::launch::start::{CopyIn, StartOrder};
use crate::launch::unattended;
use crate::notice::{Notice, Notify};

/// The amount of free disk space, in bytes, below which a start shows a warning. On a disk of less than 50 GiB, a tenth
/// of the disk's size is used instead.
const LOW_SPACE: u64 = 5 << 30;

impl Environments<'_> {
    /// Makes sure that the bottle of a task runs. Only one process at a time starts the bottle. The other processes
    /// wait, and then find the bottle running. Returns whether this call started it.
    ///
    /// # Errors
    /// Returns the failure of the start.
    pub(super) async fn ensure_runs(
        &self,
        slug: &Slug,
        choices: &Choices,
        notify: Notify<'_>,
    ) -> Result<bool, Failure> {
        if let Some(State::Alive(_)) = settled(self.host, slug).await {
            return Ok(false);
        }
        let _make = locked(|| self.records.make(slug)).await?;
        let state = settled(self.host, slug).await;
        if let Some(State::Alive(_)) = state {
            return Ok(false);
        }
        let cwd = choices.cwd.clone().unwrap_or_else(|| self.host.cwd.clone());
        let host = &Host { cwd, ..self.host.clone() };
        let settings = Settings::load(host)?;
        let wanted = match state {
            Some(State::Kept(_)) => None,
            _ => Some(start(slug, choices)),
        };
        warn_of_low_space(&host.home, notify);
        let _slot = locked(|| self.records.start_slot()).await?;
        notify(Notice::Note(format!("starting {slug}")));
        // The user asked for a command and not for a start, so notes about the start are not shown.
        let warn = &|notice| match notice {
            Notice::Warning(_) => notify(notice),
            Notice::Note(_) => {}
        };
        let launched = match wanted {
            Some(order) => unattended::start(host, &settings, order, warn).await.map(drop),
            None => unattended::resume(host, &settings, resume(slug), warn).await,
        };
        launched.map_err(|failure| failure.about_if_unset(slug))?;
        Ok(true)
    }
}

/// The name of a shipped agent that only waits, and of its bottle manifest.
const IDLE: &str = "idle";

/// Returns the order that starts a new bottle for a task. If no agent is chosen, the agent is [`IDLE`], and its bottle
/// manifest comes before the chosen ones.
fn start(slug: &Slug, choices: &Choices) -> StartOrder {
    let chosen = choices.bottles.clone().unwrap_or_default();
    let (agent, bottles) = match &choices.agent {
        Some(agent) => (agent.clone(), chosen),
        None => {
            let idle: Name = IDLE.parse().expect("the name of a shipped manifest");
            let before = chosen.iter().all(|name| *name != idle).then(|| idle.clone());
            (idle, before.into_iter().chain(chosen).collect())
        }
    };
    let mut order = StartOrder::new(agent);
    order.bottles = bottles;
    order.backend.clone_from(&choices.backend);
    order.workspace.mode = choices.cwd.is_some().then_some(CopyIn::Tracked);
    order.flags.label = Some(slug.to_string());
    order
}

/// Returns the order that resumes a task's bottle from its kept files.
fn resume(slug: &Slug) -> ResumeOrder {
    ResumeOrder { slug: slug.clone(), snapshot: None, bottles: Vec::new(), flags: Flags::default() }
}

/// Warns if another bottle may fill the disk.
fn warn_of_low_space(home: &Path, notify: Notify<'_>) {
    let Ok(disk) = statvfs(home) else { return };
    let bytes = |blocks: u64| blocks.saturating_mul(disk.f_frsize);
    let (free, total) = (bytes(disk.f_bavail), bytes(disk.f_blocks));
    if is_low(free, total) {
        let free = BinaryBytes(free);
        notify(Notice::Warning(format!(
            "only {free} are free on the disk of {}; `bottle env ls` shows what can go",
            home.display()
        )));
    }
}

fn is_low(free: u64, total: u64) -> bool {
    free < LOW_SPACE.min(total / 10)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn warns_of_a_disk_that_is_almost_full() {
        for (free, total, low) in [
            (4 << 30, 1 << 40, true),
            (5 << 30, 1 << 40, false),
            (2 << 30, 10 << 30, false),
            (1 << 29, 10 << 30, true),
            (0, 0, false),
        ] {
            assert_eq!(is_low(free, total), low, "{free} of {total}");
        }
    }

    #[test]
    fn a_start_has_the_choices_of_the_task() {
        let slug: Slug = "env-a-1".parse().expect("slug");
        let name = |name: &str| name.parse::<Name>().expect("name");
        for (bottles, expected) in [
            (None, vec!["idle"]),
            (Some(vec![name("dev")]), vec!["idle", "dev"]),
            (Some(vec![name("dev"), name("idle")]), vec!["dev", "idle"]),
        ] {
            let order = start(&slug, &Choices { bottles, ..Choices::default() });
            assert_eq!(
                (order.agent.as_str(), order.bottles),
                ("idle", expected.into_iter().map(name).collect())
            );
        }
        let choices = Choices {
            agent: Some(name("shell")),
            bottles: Some(vec![name("one"), name("two")]),
            backend: Some("linux".to_owned()),
            cwd: Some("/src".into()),
        };
        let order = start(&slug, &choices);
        assert_eq!((order.agent.as_str(), order.bottles.len()), ("shell", 2));
        assert_eq!(
            (order.backend.as_deref(), order.flags.label.as_deref()),
            (Some("linux"), Some("env-a-1"))
        );
        assert_eq!(order.workspace.mode, Some(CopyIn::Tracked));
    }
}
