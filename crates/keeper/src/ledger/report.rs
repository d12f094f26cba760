//! Sums up usage by day, provider and other properties.

use std::collections::BTreeMap;

use jiff::Timestamp;
use jiff::tz::TimeZone;

use super::error::LedgerError;
use super::repository::{Ledger, Summed, Totals};

/// The property by which usage is grouped.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum GroupBy {
    /// The day in the user's time zone.
    Day,
    /// The budget key, which is the agent's template or the host.
    Provider,
    /// The name of the agent manifest.
    Agent,
    /// The bottle, by its name.
    Bottle,
    /// The model.
    Model,
    /// The host that sent the responses.
    Host,
}

/// The sum of the responses in one group.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Group {
    /// The value of the property that all responses in the group have. Empty if the value is unknown.
    pub name: String,
    /// The sums of the tokens.
    pub totals: Totals,
}

/// Responses of one model in a [`Group`].
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct ModelGroup {
    /// The name of the group.
    pub name: String,
    /// The name of the model. Empty if the model is unknown.
    pub model: String,
    /// The sums of the tokens.
    pub totals: Totals,
}

impl Ledger {
    /// Sums up the responses since `since` by group and model, sorted by name. The sums are separate for each model,
    /// because models have different prices.
    ///
    /// # Errors
    /// [`LedgerError`] if the database cannot be read.
    pub fn model_groups(
        &self,
        by: GroupBy,
        since: Timestamp,
        zone: &TimeZone,
    ) -> Result<Vec<ModelGroup>, LedgerError> {
        let mut groups: BTreeMap<(String, String), Totals> = BTreeMap::new();
        self.for_each_sum(since, |mut summed| {
            let (model, totals) = (std::mem::take(&mut summed.model), summed.totals);
            let name = if by == GroupBy::Model { model.clone() } else { name(by, summed, zone) };
            groups.entry((name, model)).or_default().add(&totals);
        })?;
        Ok(groups.into_iter().map(|((name, model), totals)| ModelGroup { name, model, totals }).collect())
    }

    /// Sums up the responses since `since`. Days are in chronological order. Other groups are sorted by size, largest
    /// first.
    ///
    /// # Errors
    /// [`LedgerError`] if the database cannot be read.
    pub fn groups(&self, by: GroupBy, since: Timestamp, zone: &TimeZone) -> Result<Vec<Group>, LedgerError> {
        let mut groups: BTreeMap<String, Totals> = BTreeMap::new();
        self.for_each_sum(since, |summed| {
            let totals = summed.totals;
            groups.entry(name(by, summed, zone)).or_default().add(&totals);
        })?;
        let mut groups: Vec<Group> =
            groups.into_iter().map(|(name, totals)| Group { name, totals }).collect();
        if by != GroupBy::Day {
            groups.sort_by_key(|group| std::cmp::Reverse(group.totals.total()));
        }
        Ok(groups)
    }
}

fn name(by: GroupBy, summed: Summed, zone: &TimeZone) -> String {
    match by {
        GroupBy::Day => zone.to_datetime(summed.time).date().to_string(),
        GroupBy::Provider => summed.key,
        GroupBy::Agent => summed.agent,
        GroupBy::Bottle => summed.slug,
        GroupBy::Model => summed.model,
        GroupBy::Host => summed.host,
    }
}
