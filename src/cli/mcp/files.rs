//! Carries out the calls about files, in this process.

use bottle_contract::names::Slug;
use bottle_contract::session::files::FileRequest;
use bottle_host::Host;
use bottle_lib::files::Files;

use super::program::{LIMIT, Printed, RESULT_MAX, sentence, too_large};

/// Sends a request about the files of a bottle, and returns the document about the answer. If it is cancelled or takes too
/// long, the guest drops the input that it got.
///
/// # Errors
/// Returns a sentence for the model.
pub(super) async fn document(
    host: &Host,
    bottle: &str,
    request: FileRequest,
    input: &[u8],
    cancelled: impl Future<Output = ()>,
) -> Result<Printed, String> {
    let slug: Slug = bottle.parse().map_err(|_| format!("{bottle:?} is not a bottle"))?;
    let files = Files::new(host, &slug);
    let document = tokio::select! {
        document = files.document(request, input) => document.map_err(|failure| {
            sentence(failure.subject.as_deref(), &failure.message, failure.hint.as_deref())
        })?,
        () = cancelled => return Err("the call was cancelled".to_owned()),
        () = tokio::time::sleep(LIMIT) => {
            return Err(format!("the call took longer than {} seconds", LIMIT.as_secs()));
        }
    };
    let document =
        serde_json::to_value(&document).map_err(|error| format!("cannot write the result: {error}"))?;
    if document.to_string().len() as u64 > RESULT_MAX {
        return Err(too_large());
    }
    Ok(Printed::Document(document))
}
