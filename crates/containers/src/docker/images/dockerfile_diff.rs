//! Shows the changes to a user's Dockerfile since its last build. A label of the built image contains the earlier text.

use std::path::Path;

use bollard::Docker;
use bottle_backend::BackendError;
use bottle_host::Host;
use similar::TextDiff;

use super::image_error::failed;
use crate::docker::listing;

/// The label that contains the hash of `$BOTTLE_HOME` and the path of the Dockerfile.
const PATH_LABEL: &str = "bottle.dockerfile";
/// The label that contains the text of the Dockerfile.
const TEXT_LABEL: &str = "bottle.dockerfile-text";

/// Returns the labels of an image that is built from this Dockerfile.
pub(super) fn labels(host: &Host, path: &Path, text: &str) -> Vec<(String, String)> {
    vec![(PATH_LABEL.to_owned(), of(host, path)), (TEXT_LABEL.to_owned(), text.to_owned())]
}

/// Returns the changes, as lines of a unified diff. Empty if there was no earlier build, or if the text has not changed
/// since the last build.
///
/// # Errors
/// [`BackendError`] when the engine cannot be queried.
pub(super) async fn lines(
    docker: &Docker,
    host: &Host,
    path: &Path,
    text: &str,
) -> Result<Vec<String>, BackendError> {
    let label = format!("{PATH_LABEL}={}", of(host, path));
    let images = listing::images(docker, "label", vec![label]).await;
    let images = images.map_err(|error| failed("cannot look for earlier builds", error))?;
    let last = images.into_iter().max_by_key(|image| image.created);
    let before =
        last.and_then(|mut image| image.labels.remove(TEXT_LABEL)).unwrap_or_else(|| text.to_owned());
    Ok(difference(path, &before, text))
}

fn of(host: &Host, path: &Path) -> String {
    format!("{}:{}", host.home_hash(), path.display())
}

fn difference(path: &Path, before: &str, now: &str) -> Vec<String> {
    let name = path.display().to_string();
    let diff = TextDiff::from_lines(before, now);
    let text =
        diff.unified_diff().context_radius(2).header(&format!("{name} as last built"), &name).to_string();
    text.lines().map(str::to_owned).collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_difference_names_the_file_and_shows_the_lines() {
        let path = Path::new("images/dev.Dockerfile");
        assert_eq!(difference(path, "FROM a\n", "FROM a\n"), [""; 0]);
        let lines = difference(path, "FROM a\nRUN b\n", "FROM a\nRUN c\n");
        let expected = [
            "--- images/dev.Dockerfile as last built",
            "+++ images/dev.Dockerfile",
            "@@ -1,2 +1,2 @@",
            " FROM a",
            "-RUN b",
            "+RUN c",
        ];
        assert_eq!(lines, expected);
    }
}
