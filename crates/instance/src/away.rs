//! Collects the bottles that a cleanup cannot inspect, because the cleanup cannot use the engines that have these
//! bottles.

use std::collections::BTreeMap;

use bottle_backend::{Backend, BackendError, EngineIdentity};
use bottle_host::causes;

use super::cleanup::Found;
use super::engines::{self, Away};
use super::record::Record;
use super::store::Store;

/// The bottles that the cleanup cannot inspect, as found so far.
#[derive(Debug, Default)]
pub(super) struct AwayBottles {
    /// The error of each backend whose engine does not answer. Such a backend is not queried again, because each query
    /// can take until its time limit.
    silent: BTreeMap<String, BackendError>,
    bottles: Vec<(Record, Away)>,
}

/// Bottles with the same engine and the same reason, which share one message.
struct Group<'a> {
    reason: String,
    away: &'a Away,
    engine: Option<&'a EngineIdentity>,
    slugs: Vec<&'a str>,
}

impl AwayBottles {
    /// Whether the bottle's resources cannot be inspected, because its backend uses another engine or the engine fails.
    /// Adds such a bottle to the report.
    pub(super) async fn contains(
        &mut self,
        store: &Store,
        record: &Record,
        backends: &[Box<dyn Backend>],
    ) -> bool {
        let Some(backend) = backends.iter().find(|backend| backend.name() == record.backend) else {
            return false;
        };
        let away = match self.silent.get(&record.backend) {
            Some(error) => Away::NoAnswer(error.clone()),
            None => match engines::find(&**backend, &store.directory(&record.slug), record).await {
                Ok(()) => return false,
                Err(away) => away,
            },
        };
        if let Away::NoAnswer(error) = &away {
            self.silent.insert(record.backend.clone(), error.clone());
        }
        self.bottles.push((record.clone(), away));
        true
    }

    /// Reports each engine with its bottles. An engine that does not answer is reported as an error. Bottles on an
    /// engine that the user did not select are reported as left alone.
    pub(super) fn report(&self, found: &mut Found) {
        for group in self.groups() {
            match group.away {
                Away::Other(_) => found.left.push(group.describe()),
                Away::NoAnswer(_) | Away::Failed(_) => found.errors.push(group.describe()),
            }
        }
    }

    fn groups(&self) -> Vec<Group<'_>> {
        let mut groups: Vec<Group<'_>> = Vec::new();
        for (record, away) in &self.bottles {
            let (reason, engine) = (reason(away), record.engine.as_ref());
            let slug = record.slug.as_str();
            match groups.iter_mut().find(|group| group.reason == reason && group.engine == engine) {
                Some(group) => group.slugs.push(slug),
                None => groups.push(Group { reason, away, engine, slugs: vec![slug] }),
            }
        }
        groups
    }
}

impl Group<'_> {
    fn describe(&self) -> String {
        let slugs = self.slugs.join(", ");
        match (self.away, self.engine) {
            (Away::Other(current), Some(EngineIdentity { select, .. })) => {
                let are = if self.slugs.len() == 1 { "is" } else { "are" };
                let needed = self.needed();
                format!("{slugs} {are} {needed}, not on the one at {current}; `{select}` selects that engine")
            }
            (Away::Other(current), None) => format!(
                "{slugs}: the engine at {current} does not have its files, and the bottle's record is too old to name \
                 its engine"
            ),
            (Away::NoAnswer(_), Some(EngineIdentity { select, .. })) => format!(
                "cannot inspect {slugs} {}: {}; start that engine; `{select}` selects it; {}",
                self.needed(),
                self.reason,
                engines::give_up("NAME")
            ),
            (Away::NoAnswer(_), None) | (Away::Failed(_), _) => {
                format!("cannot inspect {slugs}: {}", self.reason)
            }
        }
    }

    fn needed(&self) -> String {
        self.engine.map(|engine| format!("on the engine at {engine}")).unwrap_or_default()
    }
}

fn reason(away: &Away) -> String {
    match away {
        Away::NoAnswer(error) | Away::Failed(error) => causes::one_line(error),
        Away::Other(current) => current.to_string(),
    }
}
