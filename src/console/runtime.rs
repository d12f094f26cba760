//! The tokio runtime for the asynchronous part of a command.

use std::io;

use super::error::CliError;

/// Runs a command's asynchronous part on one thread, which is enough for a session.
pub(crate) fn block_on<T>(future: impl Future<Output = Result<T, CliError>>) -> Result<T, CliError> {
    let runtime = tokio::runtime::Builder::new_current_thread()
        .enable_all()
        .build()
        .map_err(|error| CliError::cannot("start the runtime", error))?;
    let result = runtime.block_on(future);
    // Does not wait for a blocked thread, such as one that reads a key.
    runtime.shutdown_background();
    result
}

/// Runs blocking work on a thread.
pub(crate) async fn blocking<T: Send + 'static>(
    work: impl FnOnce() -> io::Result<T> + Send + 'static,
) -> io::Result<T> {
    tokio::task::spawn_blocking(work).await.unwrap_or_else(|error| Err(error.into()))
}
