//! What the models used, from the ledger.

use bottle_host::Host;
use bottle_instance::Store;
use bottle_keeper::ledger::{Ledger, LedgerError};

use super::failure::{Failure, Kind};
use super::text::counted;

/// Opens the ledger, and ingests what the bottles used since the last time. `warn` gets a warning
/// about lines that were skipped.
pub fn up_to_date(host: &Host, warn: impl FnOnce(String)) -> Result<Ledger, Failure> {
    let mut ledger = Ledger::open(&host.home)?;
    let ingested = ledger.ingest(&host.home)?;
    if ingested.skipped > 0 {
        let lines = counted(ingested.skipped, "line");
        warn(format!("skipped {lines} in `usage/` of $BOTTLE_HOME that are no usage records"));
    }
    // Bottles that were killed gave back no tokens.
    ledger.end_other_leases(|| Store::of(host).live_runs())?;
    Ok(ledger)
}

impl From<LedgerError> for Failure {
    fn from(error: LedgerError) -> Self {
        Self::from_error(Kind::Failed, &error).about(error.path.display()).hint(error.hint())
    }
}
