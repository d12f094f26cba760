//! Reads the values of secrets, for a start and for new values of credentials.

use std::collections::BTreeMap;

use bottle_host::Host;
use bottle_lib::failure::Failure;
use bottle_plan::SecretNeed;
use bottle_plan::secrets::{self, Ask, SecretError, Secrets};
use bottle_protocol::session::guest::SecretText;

use crate::console::error::CliError;
use crate::console::output::Output;
use crate::console::signals::{Signals, interrupted};
use crate::console::terminal::{TerminalUser, interactive};

/// Reads all secrets. Asks for missing secrets on the terminal.
pub(crate) async fn read_secrets(
    host: &Host,
    needs: &[SecretNeed],
    signals: &mut Signals,
    output: &Output,
) -> Result<BTreeMap<String, SecretText>, CliError> {
    if needs.is_empty() {
        return Ok(BTreeMap::new());
    }
    let (host, needs) = (host.clone(), needs.to_vec());
    // Reads the secrets on a separate thread, so that signals are handled while a question waits for the user.
    let runtime = tokio::runtime::Handle::current();
    let resolving = tokio::task::spawn_blocking(move || -> Result<Secrets, SecretError> {
        let mut user = if interactive() { TerminalUser::find().ok() } else { None };
        let ask = user.as_mut().map(|user| user as &mut dyn Ask);
        runtime.block_on(secrets::resolve(&host, &needs, ask))
    });
    let resolved = tokio::select! {
        resolved = resolving => resolved,
        number = signals.end() => return Err(interrupted(number)),
    };
    let resolved = resolved.map_err(|error| CliError::cannot("read the secrets", error))?;
    let secrets = resolved.map_err(Failure::from)?;
    for warning in &secrets.warnings {
        output.warn(warning);
    }
    Ok(secrets.values)
}
