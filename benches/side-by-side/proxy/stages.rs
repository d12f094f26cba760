//! Measures the stages of a request: how long each span of the proxy's request pipeline is open.
//!
//! The proxy process collects the durations and writes their medians to its standard error, because it cannot open a
//! file.

use std::collections::BTreeMap;
use std::fmt::Write as _;
use std::io::Write as _;
use std::path::Path;
use std::sync::{Mutex, PoisonError};
use std::time::Instant;

use anyhow::{Context as _, Result};
use tracing::span::{Attributes, Id};
use tracing::{Level, Metadata, Subscriber};
use tracing_subscriber::layer::{Context, Layer, SubscriberExt};
use tracing_subscriber::registry::LookupSpan;
use tracing_subscriber::util::SubscriberInitExt;

use crate::median;

/// The environment variable that makes a proxy measure its stages.
pub(crate) const ENABLED: &str = "BOTTLE_BENCH_STAGES";

/// The line before each list of medians.
const HEAD: &str = "stages:\n";

/// The name of the span of a complete request. This span contains the spans of all stages.
const REQUEST: &str = "request";

/// The proxy writes the medians each time this number of requests has ended.
const EVERY: usize = 100;

/// Measures the stages in this process, if [`ENABLED`] is set.
pub(crate) fn measure() -> Result<()> {
    if std::env::var_os(ENABLED).is_none() {
        return Ok(());
    }
    let stages = Stages { open: Mutex::default() };
    tracing_subscriber::registry().with(stages).try_init().context("measure the stages")
}

/// Returns the list of medians that the proxy wrote last. `output` is the file with the proxy's standard error.
pub(crate) fn read(output: &Path) -> Result<String> {
    let text = std::fs::read_to_string(output)?;
    let (_, last) = text.rsplit_once(HEAD).with_context(|| format!("no stages in {text:?}"))?;
    Ok(last.to_owned())
}

struct Stages {
    /// For each span name, how long each span was open, in microseconds.
    open: Mutex<BTreeMap<&'static str, Vec<f64>>>,
}

/// The time at which a span was created.
struct Created(Instant);

impl<S: Subscriber + for<'a> LookupSpan<'a>> Layer<S> for Stages {
    fn enabled(&self, metadata: &Metadata<'_>, _: Context<'_, S>) -> bool {
        metadata.is_span()
            && *metadata.level() <= Level::DEBUG
            && metadata.target().starts_with("bottle_egress")
    }

    fn on_new_span(&self, _: &Attributes<'_>, id: &Id, context: Context<'_, S>) {
        if let Some(span) = context.span(id) {
            span.extensions_mut().insert(Created(Instant::now()));
        }
    }

    fn on_close(&self, id: Id, context: Context<'_, S>) {
        let Some(span) = context.span(&id) else { return };
        let Some(open) = span.extensions().get::<Created>().map(|created| created.0.elapsed()) else {
            return;
        };
        let mut all = self.open.lock().unwrap_or_else(PoisonError::into_inner);
        all.entry(span.name()).or_default().push(open.as_secs_f64() * 1e6);
        if span.name() == REQUEST && all[REQUEST].len().is_multiple_of(EVERY) {
            // A failed write is ignored here: the benchmark fails later because the medians are missing.
            let _ = std::io::stderr().write_all(lines(&all).as_bytes());
        }
    }
}

fn lines(all: &BTreeMap<&'static str, Vec<f64>>) -> String {
    let mut lines = HEAD.to_owned();
    for (name, times) in all {
        let _ = writeln!(lines, "  {name:<14} {:>6.0} us, {} times", median(&mut times.clone()), times.len());
    }
    lines
}
