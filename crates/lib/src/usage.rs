//! Reads the tokens that models used from the ledger, and computes their costs.

use std::collections::BTreeMap;

use bottle_host::Host;
use bottle_host::rates::{Cost, Rates};
use bottle_instance::Store;
use bottle_keeper::ledger::{Group, GroupBy, Ledger, LedgerError};
use jiff::Timestamp;
use jiff::tz::TimeZone;

use super::failure::{Failure, Kind};
use super::notice::{Notice, Notify};
use super::report::{Money, UsageGroup};
use super::text::counted;

/// Opens the ledger, and ingests the bottles' usage since the last ingestion. `warn` receives a warning about lines
/// that were skipped.
pub fn up_to_date(host: &Host, warn: impl FnOnce(String)) -> Result<Ledger, Failure> {
    let mut ledger = Ledger::open(&host.home)?;
    let ingested = ledger.ingest(&host.home)?;
    if ingested.skipped > 0 {
        let lines = counted(ingested.skipped, "line");
        warn(format!("skipped {lines} in `usage/` of $BOTTLE_HOME that are no usage records"));
    }
    // Bottles that were killed did not return their reserved tokens to the ledger.
    ledger.end_other_leases(|| Store::of(host).live_runs())?;
    Ok(ledger)
}

/// The cost of each group's tokens, computed with `rates.yml`.
#[derive(Debug)]
pub struct Costs {
    /// The currency, as `rates.yml` names it.
    pub currency: String,
    groups: BTreeMap<String, Cost>,
}

impl Costs {
    /// Computes the costs of the responses since the time `since`, by group. `None` if there are no rates. Rates that
    /// cannot be used only cause a warning, because no decision depends on costs.
    ///
    /// # Errors
    /// When the ledger cannot be read.
    pub fn read(
        host: &Host,
        ledger: &Ledger,
        by: GroupBy,
        since: Timestamp,
        notify: Notify<'_>,
    ) -> Result<Option<Self>, Failure> {
        let rates = match Rates::load(host) {
            Ok(Some(rates)) => rates,
            Ok(None) => return Ok(None),
            Err(error) => {
                notify(Notice::Warning(format!("{error}; costs are not shown")));
                return Ok(None);
            }
        };
        let mut groups: BTreeMap<String, Cost> = BTreeMap::new();
        for group in ledger.model_groups(by, since, &TimeZone::system())? {
            let cost = rates.cost(&group.model, &group.totals.kinds());
            groups.entry(group.name).or_default().add(cost);
        }
        Ok(Some(Self { currency: rates.currency, groups }))
    }

    /// The cost of the group with this name.
    pub fn of(&self, group: &str) -> Cost {
        self.groups.get(group).copied().unwrap_or_default()
    }

    /// The cost of all groups.
    pub fn sum(&self) -> Cost {
        self.groups.values().fold(Cost::default(), |mut sum, cost| {
            sum.add(*cost);
            sum
        })
    }

    /// Returns the output document of a group, with the group's cost.
    pub fn priced(&self, group: &Group) -> UsageGroup {
        let Cost { amount, is_partial: partial } = self.of(&group.name);
        let cost = Some(Money { amount, currency: self.currency.clone(), partial });
        UsageGroup { cost, ..UsageGroup::from(group) }
    }
}

impl From<LedgerError> for Failure {
    fn from(error: LedgerError) -> Self {
        Self::from_error(Kind::Failed, &error).about(error.path.display()).hint(error.hint())
    }
}
