//! Defines the MCP tools by their names, descriptions and schemas, and parses their arguments.

use bottle_policy::proposal::{self, Proposal, ProposalError};
use bottle_protocol::queue::{BadId, Id, Tool};
use rmcp::model::{JsonObject, Tool as Described, ToolAnnotations};
use serde::Deserialize;
use serde_json::{Value, json};

/// The maximum length of a reason in characters. A longer reason is rejected, because a user has to read it.
const MAX_WHY: usize = 4000;

/// The maximum length of a refusal's id in characters. A longer id is rejected. The ids that the proxy creates are
/// shorter.
const MAX_REFUSAL: usize = 64;

/// The names of the daemon's own tools.
const NAMES: [&str; 4] = ["list-egress-routes", "egress-allow", "egress-block", "check-proposal"];

/// A parsed tool call with valid arguments.
#[derive(Debug)]
pub(crate) enum Call {
    /// A call of `list-egress-routes`.
    List,
    /// A call of `egress-allow` or `egress-block`.
    Propose {
        /// The tool that is called.
        tool: Tool,
        /// The proposed routes.
        proposal: Proposal,
        /// The reason for the proposal, which the user reads.
        why: String,
        /// The revision of the routes that the agent has seen. `None` if the agent did not specify the revision.
        revision: Option<u64>,
    },
    /// A call of `check-proposal`.
    Check(Id),
}

/// The reason why a tool call is invalid. The agent receives the error message.
#[derive(Debug, thiserror::Error)]
pub(crate) enum BadCall {
    /// There is no tool with this name.
    #[error(
        "unknown tool {0}; the tools are list-egress-routes, egress-allow, egress-block and check-proposal"
    )]
    Unknown(String),
    /// An argument is missing, unknown or of the wrong type.
    #[error("{0}")]
    Arguments(#[from] serde_json::Error),
    /// The proposed routes are invalid.
    #[error("routes: {0}")]
    Routes(#[from] ProposalError),
    /// The reason is missing or too long.
    #[error("`justification` must explain, in 1 to {MAX_WHY} characters, why you need the routes")]
    Why,
    /// The id of the refusal is invalid.
    #[error("`refusal_id` must be the `id` of the proxy's refusal: letters, digits, `-` and `_`")]
    Refusal,
    /// The id of the proposal is invalid.
    #[error("`id` is {0}")]
    Id(#[from] BadId),
}

#[derive(Deserialize)]
#[serde(deny_unknown_fields)]
struct ListArguments {}

#[derive(Deserialize)]
#[serde(deny_unknown_fields)]
struct AllowArguments {
    routes: Value,
    justification: String,
    #[serde(default)]
    revision: Option<u64>,
}

#[derive(Deserialize)]
#[serde(deny_unknown_fields)]
struct BlockArguments {
    routes: Value,
    justification: String,
    refusal_id: String,
    #[serde(default)]
    revision: Option<u64>,
}

#[derive(Deserialize)]
#[serde(deny_unknown_fields)]
struct CheckArguments {
    id: String,
}

impl Call {
    /// Parses the name and arguments of a call.
    ///
    /// # Errors
    /// Fails with [`BadCall`] if the call is invalid.
    pub(crate) fn parse(name: &str, arguments: Option<JsonObject>) -> Result<Self, BadCall> {
        let arguments = Value::Object(arguments.unwrap_or_default());
        match name {
            "list-egress-routes" => {
                let ListArguments {} = serde_json::from_value(arguments)?;
                Ok(Self::List)
            }
            "egress-allow" => {
                let AllowArguments { routes, justification, revision } = serde_json::from_value(arguments)?;
                let (tool, proposal, why) =
                    (Tool::EgressAllow, parse_proposal(&routes)?, why(&justification)?);
                Ok(Self::Propose { tool, proposal, why, revision })
            }
            "egress-block" => {
                let BlockArguments { routes, justification, refusal_id, revision } =
                    serde_json::from_value(arguments)?;
                let good = |byte: u8| byte.is_ascii_alphanumeric() || byte == b'-' || byte == b'_';
                let fits = (1..=MAX_REFUSAL).contains(&refusal_id.len()) && refusal_id.bytes().all(good);
                if !fits {
                    return Err(BadCall::Refusal);
                }
                let (tool, proposal) = (Tool::EgressBlock, parse_proposal(&routes)?);
                let why = format!("{}\n(after the refusal {refusal_id})", why(&justification)?);
                Ok(Self::Propose { tool, proposal, why, revision })
            }
            "check-proposal" => {
                let CheckArguments { id } = serde_json::from_value(arguments)?;
                Ok(Self::Check(Id::try_from(id)?))
            }
            other => {
                Err(BadCall::Unknown(other.chars().take(80).collect::<String>().escape_debug().to_string()))
            }
        }
    }
}

/// Parses routes that are given as JSON, or as a string that contains YAML.
fn parse_proposal(routes: &Value) -> Result<Proposal, ProposalError> {
    match routes {
        Value::String(text) => proposal::parse(text),
        routes => proposal::parse(&routes.to_string()),
    }
}

fn why(text: &str) -> Result<String, BadCall> {
    let text = text.trim();
    if text.is_empty() || text.chars().count() > MAX_WHY { Err(BadCall::Why) } else { Ok(text.to_owned()) }
}

/// Returns whether the tool `name` is one of the daemon's own tools. All other tools are tools of the keeper.
pub(crate) fn is_own(name: &str) -> bool {
    NAMES.contains(&name)
}

/// Returns the names, descriptions and schemas of the daemon's own tools.
pub(crate) fn all() -> Vec<Described> {
    let routes = routes();
    let justification = json!({
        "type": "string",
        "minLength": 1,
        "maxLength": MAX_WHY,
        "description": "Why you need it, in one or two sentences. The user reads it before deciding.",
    });
    let revision = json!({
        "type": "integer",
        "minimum": 1,
        "description": "The `revision` from list-egress-routes. Optional.",
    });
    let allow = json!({
        "type": "object",
        "properties": {"routes": routes, "justification": justification, "revision": revision},
        "required": ["routes", "justification"],
        "additionalProperties": false,
    });
    let mut block = allow.clone();
    block["properties"]["refusal_id"] = json!({
        "type": "string",
        "maxLength": MAX_REFUSAL,
        "description": "The `id` in the JSON body of the proxy's 403 response to your request.",
    });
    block["required"] = json!(["routes", "justification", "refusal_id"]);
    let check = json!({
        "type": "object",
        "properties": {"id": {"type": "string", "description": "The `id` from egress-allow or egress-block."}},
        "required": ["id"],
        "additionalProperties": false,
    });
    let nothing = json!({"type": "object", "properties": {}, "additionalProperties": false});
    let reads = || ToolAnnotations::new().read_only(true).open_world(false);
    let asks =
        || ToolAnnotations::new().read_only(false).destructive(false).idempotent(true).open_world(false);
    vec![
        tool("list-egress-routes", LIST, &nothing).with_annotations(reads()),
        tool("egress-allow", ALLOW, &allow).with_annotations(asks()),
        tool("egress-block", BLOCK, &block).with_annotations(asks()),
        tool("check-proposal", CHECK, &check).with_annotations(reads()),
    ]
}

fn tool(name: &'static str, description: &'static str, schema: &Value) -> Described {
    Described::new(name, description, schema.as_object().cloned().unwrap_or_default())
}

/// Returns the JSON schema of proposed routes. The schema also accepts a string that contains the same structure as
/// YAML.
fn routes() -> Value {
    let text = |description: &str| json!({"type": "string", "description": description});
    let one = json!({
        "type": "object",
        "properties": {
            "host": text("A host name (`api.example.com`), or `*.example.com` for every name below it. No scheme, port or path."),
            "matches": {
                "type": "array",
                "description": "The allowed requests; a request must match one entry. If omitted, every request to the host. Propose no more than you need: a user approves a narrow route sooner.",
                "items": {
                    "type": "object",
                    "properties": {
                        "methods": {"type": "array", "items": text("`GET`, `POST`, …"), "description": "If omitted, every method."},
                        "paths": {
                            "type": "array",
                            "description": "A request must match one of them. If omitted, every path.",
                            "items": {
                                "type": "object",
                                "properties": {
                                    "type": {"type": "string", "enum": ["exact", "prefix", "regex"], "default": "prefix", "description": "`prefix` ends at a slash: `/v1` is `/v1` and all below `/v1/`."},
                                    "value": text("Starts with `/`; without a query."),
                                },
                                "required": ["value"],
                                "additionalProperties": false,
                            },
                        },
                        "headers": {
                            "type": "array",
                            "description": "A request must match all of them.",
                            "items": {
                                "type": "object",
                                "properties": {
                                    "name": text("A header."),
                                    "type": {"type": "string", "enum": ["exact", "regex"]},
                                    "value": text("Its value."),
                                },
                                "required": ["name", "value"],
                                "additionalProperties": false,
                            },
                        },
                    },
                    "additionalProperties": false,
                },
            },
            "git": {
                "type": "object",
                "properties": {"fetch": {"type": "boolean", "description": "Also git clone and fetch over HTTPS."}},
                "required": ["fetch"],
                "additionalProperties": false,
            },
        },
        "required": ["host"],
        "additionalProperties": false,
    });
    json!({
        "description": "The routes to add or to widen, for example [{\"host\": \"api.example.com\", \"matches\": [{\"methods\": [\"GET\"], \"paths\": [{\"type\": \"prefix\", \"value\": \"/v1\"}]}]}]. You cannot propose credentials, ports or other fields of a route.",
        "anyOf": [{"type": "array", "minItems": 1, "items": one}, text("The same as YAML.")],
    })
}

const LIST: &str = "Lists the hosts and requests that this sandbox's egress proxy allows now, with their \
                    `revision`. It denies all other requests with 403.";

const ALLOW: &str = "Asks the user to let you reach a host, before you need it. The call waits for \
                     the decision. `approved` or `modified`: the routes are live, make your request. `rejected`: \
                     `notes` explains why; continue without it. `pending`: the user has not decided yet; continue \
                     with other work, and check again with check-proposal and the `id`.";

const BLOCK: &str = "The same as egress-allow, after the proxy has denied one of your requests (403 with a JSON \
                     body): pass the `id` of that response as `refusal_id`, and the routes that would allow the \
                     request.";

const CHECK: &str = "Checks a `pending` proposal and waits for its decision again.";

#[cfg(test)]
mod tests {
    use super::*;

    fn call(name: &str, arguments: Value) -> Result<Call, BadCall> {
        Call::parse(name, arguments.as_object().cloned())
    }

    #[test]
    fn parses_calls_and_explains_errors() {
        let routes = json!([{"host": "a.example", "matches": [{"methods": ["GET"]}]}]);
        let yaml = json!("routes:\n- host: a.example\n  matches: [{methods: [GET]}]\n");
        for routes in [routes.clone(), json!({"routes": routes}), yaml] {
            let Ok(Call::Propose { tool: Tool::EgressAllow, proposal, why, revision: Some(2) }) =
                call("egress-allow", json!({"routes": routes, "justification": " tests\n", "revision": 2}))
            else {
                panic!("{routes}")
            };
            assert_eq!((proposal.routes().len(), why.as_str()), (1, "tests"));
        }
        let Ok(Call::Propose { tool: Tool::EgressBlock, why, .. }) =
            call("egress-block", json!({"routes": routes, "justification": "tests", "refusal_id": "r-7"}))
        else {
            panic!("a proposal")
        };
        assert_eq!(why, "tests\n(after the refusal r-7)");
        assert!(matches!(call("list-egress-routes", json!({})), Ok(Call::List)));
        for (name, arguments, words) in [
            ("egress-deny", json!({}), "unknown tool egress-deny"),
            ("list-egress-routes", json!({"x": 1}), "unknown field `x`"),
            ("egress-allow", json!({"routes": routes}), "missing field `justification`"),
            ("egress-allow", json!({"routes": routes, "justification": " "}), "`justification` must explain"),
            ("egress-allow", json!({"routes": [], "justification": "x"}), "names no route"),
            ("egress-allow", json!({"routes": 7, "justification": "x"}), "a list of routes"),
            (
                "egress-allow",
                json!({"routes": [{"host": "a.example", "ports": [22]}], "justification": "x"}),
                "take out `ports`",
            ),
            (
                "egress-allow",
                json!({"routes": [{"host": "a.example", "auth": {"scheme": "Bearer", "token_ref": "S"}}], "justification": "x"}),
                "auth",
            ),
            (
                "egress-block",
                json!({"routes": routes, "justification": "x", "refusal_id": "\u{1b}[2J"}),
                "`refusal_id` must be the `id`",
            ),
            ("check-proposal", json!({"id": "../x"}), "`id` is not the id of a proposal"),
        ] {
            let error = call(name, arguments.clone()).expect_err(words).to_string();
            assert!(error.contains(words), "{name} {arguments}: {error}");
        }
    }

    #[test]
    fn the_parser_accepts_everything_in_the_schema() {
        let full = json!([{
            "host": "*.a.example",
            "matches": [{
                "methods": ["GET"],
                "paths": [
                    {"type": "exact", "value": "/x"},
                    {"type": "prefix", "value": "/v1"},
                    {"value": "/v2"},
                    {"type": "regex", "value": "/v[0-9]+"},
                ],
                "headers": [
                    {"name": "accept", "type": "exact", "value": "text/html"},
                    {"name": "accept", "type": "regex", "value": "text/.*"},
                ],
            }],
            "git": {"fetch": true},
        }]);
        proposal::parse(&full.to_string()).expect("a proposal");
        let names: Vec<String> = all().into_iter().map(|tool| tool.name.into_owned()).collect();
        assert_eq!(names, NAMES);
    }
}
