//! What there is to call: names, descriptions, schemas, and the arguments as they come.

use bottle_contract::proposal::{self, Proposal, ProposalError};
use bottle_contract::queue::{BadId, Id, Tool};
use rmcp::model::{JsonObject, Tool as Described, ToolAnnotations};
use serde::Deserialize;
use serde_json::{Value, json};

/// The longest reason, in characters; a user has to read it.
const MAX_WHY: usize = 4000;

/// The longest id of a refusal; the proxy's own are shorter.
const MAX_REFUSAL: usize = 64;

/// A call, checked.
#[derive(Debug)]
pub(crate) enum Call {
    /// `list-egress-routes`.
    List,
    /// `egress-allow` and `egress-block`.
    Propose {
        /// Which of them.
        tool: Tool,
        /// What is asked for.
        proposal: Proposal,
        /// Why, for the user.
        why: String,
        /// The routes it was made against.
        revision: Option<u64>,
    },
    /// `check-proposal`.
    Check(Id),
}

/// A call that means nothing. The words are for the agent.
#[derive(Debug, thiserror::Error)]
pub(crate) enum BadCall {
    /// No such tool.
    #[error(
        "there is no tool {0}; there are list-egress-routes, egress-allow, egress-block and check-proposal"
    )]
    Unknown(String),
    /// Arguments are missing, of another type, or not known.
    #[error("{0}")]
    Arguments(#[from] serde_json::Error),
    /// No proposal.
    #[error("routes: {0}")]
    Routes(#[from] ProposalError),
    /// No reason a user could read.
    #[error("`justification` has to say, in 1 to {MAX_WHY} characters, what the routes are needed for")]
    Why,
    /// No id of a refusal.
    #[error("`refusal_id` is the `id` of the proxy's refusal: letters, digits, `-` and `_`")]
    Refusal,
    /// No id of a proposal.
    #[error("`id` is {0}")]
    Id(#[from] BadId),
}

#[derive(Deserialize)]
#[serde(deny_unknown_fields)]
struct Nothing {}

#[derive(Deserialize)]
#[serde(deny_unknown_fields)]
struct Wanted {
    routes: Value,
    justification: String,
    #[serde(default)]
    revision: Option<u64>,
}

#[derive(Deserialize)]
#[serde(deny_unknown_fields)]
struct Refused {
    routes: Value,
    justification: String,
    refusal_id: String,
    #[serde(default)]
    revision: Option<u64>,
}

#[derive(Deserialize)]
#[serde(deny_unknown_fields)]
struct Named {
    id: String,
}

impl Call {
    /// Reads a call.
    ///
    /// # Errors
    /// [`BadCall`].
    pub(crate) fn read(name: &str, arguments: Option<JsonObject>) -> Result<Self, BadCall> {
        let arguments = Value::Object(arguments.unwrap_or_default());
        match name {
            "list-egress-routes" => {
                let Nothing {} = serde_json::from_value(arguments)?;
                Ok(Self::List)
            }
            "egress-allow" => {
                let Wanted { routes, justification, revision } = serde_json::from_value(arguments)?;
                let (tool, proposal, why) = (Tool::EgressAllow, read(&routes)?, why(&justification)?);
                Ok(Self::Propose { tool, proposal, why, revision })
            }
            "egress-block" => {
                let Refused { routes, justification, refusal_id, revision } =
                    serde_json::from_value(arguments)?;
                let good = |byte: u8| byte.is_ascii_alphanumeric() || byte == b'-' || byte == b'_';
                let fits = (1..=MAX_REFUSAL).contains(&refusal_id.len()) && refusal_id.bytes().all(good);
                if !fits {
                    return Err(BadCall::Refusal);
                }
                let (tool, proposal) = (Tool::EgressBlock, read(&routes)?);
                let why = format!("{}\n(after the refusal {refusal_id})", why(&justification)?);
                Ok(Self::Propose { tool, proposal, why, revision })
            }
            "check-proposal" => {
                let Named { id } = serde_json::from_value(arguments)?;
                Ok(Self::Check(Id::try_from(id)?))
            }
            other => {
                Err(BadCall::Unknown(other.chars().take(80).collect::<String>().escape_debug().to_string()))
            }
        }
    }
}

/// Routes as JSON, or as YAML in a string.
fn read(routes: &Value) -> Result<Proposal, ProposalError> {
    match routes {
        Value::String(text) => proposal::parse(text),
        routes => proposal::parse(&routes.to_string()),
    }
}

fn why(text: &str) -> Result<String, BadCall> {
    let text = text.trim();
    if text.is_empty() || text.chars().count() > MAX_WHY { Err(BadCall::Why) } else { Ok(text.to_owned()) }
}

/// All of them.
pub(crate) fn all() -> Vec<Described> {
    let routes = routes();
    let justification = json!({
        "type": "string",
        "minLength": 1,
        "maxLength": MAX_WHY,
        "description": "What you need it for, in one or two sentences. A user reads it and decides by it.",
    });
    let revision = json!({
        "type": "integer",
        "minimum": 1,
        "description": "The `revision` that list-egress-routes answered with. May be left out.",
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
        "description": "The `id` in the JSON body of the 403 that the proxy answered your request with.",
    });
    block["required"] = json!(["routes", "justification", "refusal_id"]);
    let check = json!({
        "type": "object",
        "properties": {"id": {"type": "string", "description": "The `id` that egress-allow or egress-block answered with."}},
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

/// The vocabulary of proposals. A string is YAML of the same.
fn routes() -> Value {
    let text = |description: &str| json!({"type": "string", "description": description});
    let one = json!({
        "type": "object",
        "properties": {
            "host": text("A host name (`api.example.com`), or `*.example.com` for every name below it. No scheme, port or path."),
            "matches": {
                "type": "array",
                "description": "Which requests; one of the entries has to fit. Left out: every request to the host. Ask for no more than you need: a user allows a narrow route sooner.",
                "items": {
                    "type": "object",
                    "properties": {
                        "methods": {"type": "array", "items": text("`GET`, `POST`, …"), "description": "Left out: every method."},
                        "paths": {
                            "type": "array",
                            "description": "One of them has to fit. Left out: every path.",
                            "items": {
                                "type": "object",
                                "properties": {
                                    "type": {"type": "string", "enum": ["exact", "prefix", "regex"], "description": "`prefix` ends at a slash: `/v1` is `/v1` and all below `/v1/`."},
                                    "value": text("Begins with `/`; without a query."),
                                },
                                "required": ["type", "value"],
                                "additionalProperties": false,
                            },
                        },
                        "headers": {
                            "type": "array",
                            "description": "All of them have to fit.",
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
        "description": "The routes to add or to widen, for example [{\"host\": \"api.example.com\", \"matches\": [{\"methods\": [\"GET\"], \"paths\": [{\"type\": \"prefix\", \"value\": \"/v1\"}]}]}]. Credentials, ports and everything else of a route are the user's and cannot be proposed.",
        "anyOf": [{"type": "array", "minItems": 1, "items": one}, text("The same as YAML.")],
    })
}

const LIST: &str = "Lists what may leave this sandbox: the hosts and requests that its egress proxy lets \
                    through right now, with their `revision`. Anything else is refused with 403.";

const ALLOW: &str = "Asks the user in charge to let you reach a host, before you need it. The call waits for \
                     the decision. `approved` or `modified`: the routes are live, make your request. `rejected`: \
                     `notes` says why; do without. `pending`: nobody has decided yet; go on with something else, \
                     and ask again with check-proposal and the `id`.";

const BLOCK: &str = "The same as egress-allow, after the proxy has refused a request of yours (403 with a JSON \
                     body): give the `id` of that refusal as `refusal_id`, and the routes that would let the \
                     request through.";

const CHECK: &str = "Asks what became of a proposal that was `pending`, and waits for its decision again.";

#[cfg(test)]
mod tests {
    use super::*;

    fn call(name: &str, arguments: Value) -> Result<Call, BadCall> {
        Call::read(name, arguments.as_object().cloned())
    }

    #[test]
    fn calls_are_read_and_what_is_wrong_is_said() {
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
            ("egress-deny", json!({}), "there is no tool egress-deny"),
            ("list-egress-routes", json!({"x": 1}), "unknown field `x`"),
            ("egress-allow", json!({"routes": routes}), "missing field `justification`"),
            ("egress-allow", json!({"routes": routes, "justification": " "}), "`justification` has to say"),
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
                "`refusal_id` is the `id`",
            ),
            ("check-proposal", json!({"id": "../x"}), "`id` is not the id of a proposal"),
        ] {
            let error = call(name, arguments.clone()).expect_err(words).to_string();
            assert!(error.contains(words), "{name} {arguments}: {error}");
        }
    }

    #[test]
    fn everything_in_the_schema_is_taken_by_the_parser() {
        let full = json!([{
            "host": "*.a.example",
            "matches": [{
                "methods": ["GET"],
                "paths": [
                    {"type": "exact", "value": "/x"},
                    {"type": "prefix", "value": "/v1"},
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
        assert_eq!(names, ["list-egress-routes", "egress-allow", "egress-block", "check-proposal"]);
    }
}
