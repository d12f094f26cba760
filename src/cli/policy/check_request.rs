//! `bottle policy check`: shows whether the proxy would allow a request, and why.

use bottle_host::Host;
use bottle_lib::report::PolicyAnswer;
use http::{HeaderMap, HeaderName, HeaderValue};

use super::{PolicySource, colored_verdict};
use crate::console::error::CliError;
use crate::console::exit;
use crate::console::output::{Output, inert};

/// The arguments of `policy check`.
#[derive(Debug, clap::Args)]
pub(crate) struct Check {
    /// The method of the request
    method: String,
    /// The URL of the request
    url: String,
    /// A header of the request; may be repeated
    #[arg(short = 'H', long = "header", value_name = "NAME: VALUE", value_parser = header)]
    headers: Vec<(HeaderName, HeaderValue)>,
    #[command(flatten)]
    source: PolicySource,
}

impl Check {
    pub(super) fn run(self, host: &Host, output: &Output) -> Result<u8, CliError> {
        let decider = self.source.decider(host, output)?;
        let headers: HeaderMap = self.headers.iter().cloned().collect();
        let answer = decider.decide(&self.method, &self.url, &headers, None)?;
        output.json_or(&answer, || output.print(&text(&answer, output)))?;
        Ok(exit::DONE)
    }
}

fn text(answer: &PolicyAnswer, output: &Output) -> String {
    let styles = output.styles();
    let reason = answer.reason.map(|reason| format!(" {}", reason.as_str())).unwrap_or_default();
    let word = format!("{}{reason}", colored_verdict(answer.verdict, styles));
    let mut lines = vec![word, format!("  {}", inert(&answer.sentence))];
    if let (Some(route), Some(origin)) = (&answer.route, &answer.origin) {
        lines.push(format!("  {} {route}  {}", styles.dim("route"), styles.dim(&inert(origin))));
    }
    let warnings =
        answer.warnings.iter().map(|words| format!("  {} {}", styles.yellow("warning"), inert(words)));
    lines.extend(warnings);
    lines.join("\n")
}

/// Parses a header in the form `Name: value`.
fn header(text: &str) -> Result<(HeaderName, HeaderValue), String> {
    let (name, value) = text.split_once(':').ok_or("write `Name: value`")?;
    let name = name.trim().parse::<HeaderName>().map_err(|_| format!("{name:?} is not a header name"))?;
    let value = HeaderValue::from_str(value.trim()).map_err(|_| "this is not a header value".to_owned())?;
    Ok((name, value))
}
