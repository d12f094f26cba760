//! Loads the user's scanner rules.

use bottle_host::{Host, ScannerRules};

use super::failure::Failure;
use super::notice::{Notice, Notify};
use super::text::inert;

/// The maximum number of warnings that are shown. `bottle doctor` shows all warnings.
const MAX_SHOWN: usize = 5;

/// Loads the user's scanner rules. Leaves out each rule that cannot be used, and shows a warning about it.
///
/// # Errors
/// When a file cannot be read, is not TOML, or is too large.
pub fn load(host: &Host, notify: Notify<'_>) -> Result<ScannerRules, Failure> {
    let own = ScannerRules::load(host)?;
    let warnings: Vec<String> = own.warnings().collect();
    for warning in warnings.iter().take(MAX_SHOWN) {
        notify(Notice::Warning(format!("rules/{}", inert(warning))));
    }
    if let Some(more @ 1..) = warnings.len().checked_sub(MAX_SHOWN) {
        notify(Notice::Warning(format!(
            "{more} more parts of your scanner rules are left out; `bottle doctor` names them"
        )));
    }
    Ok(own)
}
