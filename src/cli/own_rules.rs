//! Loads the user's scanner rules, and warns about those that are left out.

use bottle_host::{Host, OwnRules};

use super::error::CliError;
use super::output::{Output, inert};

/// The maximum number of warnings that a command shows. `bottle doctor` shows all of them.
const MAX_SHOWN: usize = 5;

/// Loads the rules. Rules that cannot be used are left out, with a warning each.
///
/// # Errors
/// Fails if a file cannot be read, is no TOML, or is too large.
pub(crate) fn load(host: &Host, output: &Output) -> Result<OwnRules, CliError> {
    let own = OwnRules::load(host)?;
    let warnings: Vec<String> = own.warnings().collect();
    for warning in warnings.iter().take(MAX_SHOWN) {
        output.warn(format!("rules/{}", inert(warning)));
    }
    if let Some(more @ 1..) = warnings.len().checked_sub(MAX_SHOWN) {
        output.warn(format!(
            "{more} more parts of your scanner rules are left out; `bottle doctor` names them"
        ));
    }
    Ok(own)
}
