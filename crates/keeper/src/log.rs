//! The keeper's log: `logs/keeper.log` in the bottle's directory.

use std::fs::OpenOptions;
use std::os::unix::fs::OpenOptionsExt;

use bottle_host::files;
use bottle_instance::Claim;
use tracing::level_filters::LevelFilter;
use tracing_subscriber::EnvFilter;
use tracing_subscriber::fmt::format::FmtSpan;

/// If the log has more bytes than this when a keeper opens it, the keeper begins a new log. Besides the new log, only
/// the previous log is kept.
const MAX_BYTES: u64 = 4 << 20;

/// Starts logging to standard error, which is discarded until a bottle is claimed. `RUST_LOG` sets the filter. When a
/// span that the filter selects ends, a line with the span's duration is written.
pub(super) fn start() {
    let filter = EnvFilter::builder().with_default_directive(LevelFilter::INFO.into());
    let _ = tracing_subscriber::fmt()
        .with_env_filter(filter.from_env_lossy())
        .with_span_events(FmtSpan::CLOSE)
        .with_writer(std::io::stderr)
        .with_ansi(false)
        .try_init();
}

/// Redirects standard error, which includes panic messages, to the bottle's log file.
pub(super) fn open(claim: &Claim) {
    let logs = claim.directory().join("logs");
    let _ = files::create_private_directory(&logs);
    let path = logs.join("keeper.log");
    if path.metadata().is_ok_and(|found| found.len() > MAX_BYTES) {
        // Replaces the older log.
        let _ = std::fs::rename(&path, logs.join("keeper.log.old"));
    }
    let file = OpenOptions::new().create(true).append(true).mode(0o600).open(path);
    if let Ok(file) = file {
        let _ = rustix::stdio::dup2_stderr(&file);
    }
}

/// Closes the log file. On a network file system, an open file would prevent the removal of the file's directory.
pub(super) fn close() {
    if let Ok(nothing) = OpenOptions::new().write(true).open("/dev/null") {
        let _ = rustix::stdio::dup2_stderr(&nothing);
    }
}
