//! The `[[oidc]]` tables: whose tokens `serve` exchanges for keys, and for which.
//!
//! Promise: every field is parsed once, here; a wrong one is refused with the table, the field, its value and the allowed form.
//! Non-promise: nothing of them is checked before a server starts, or `config` shows them. Other commands have no use for them.

use crate::toml_reader::RawTables;
use std::path::PathBuf;

/// The tables of a file, and where that is.
#[derive(Debug, Clone, Default)]
#[cfg_attr(not(feature = "server"), allow(dead_code, reason = "only a server reads them"))]
pub struct OidcTables {
    pub tables: RawTables,
    pub file: PathBuf,
}

#[cfg(feature = "server")]
mod rules {
    use super::OidcTables;
    use crate::toml_reader::read_table;
    use leasehold_core::{Error, Kind, Result, parse_duration};
    use leasehold_server::access::{Scope, Verb, VerbSet, check_patterns};
    use leasehold_server::oidc::{Claims, Lasts, Rule, Wanted, check_scope};
    use serde::Deserialize;
    use std::collections::BTreeMap;
    use std::path::Path;

    /// A table as it is written.
    #[derive(Deserialize)]
    #[serde(deny_unknown_fields)]
    struct OidcTable {
        issuer: String,
        jwks_file: Option<std::path::PathBuf>,
        audience: String,
        #[serde(default)]
        claims: toml::Table,
        namespace: String,
        names: Option<Vec<String>>,
        allow: Vec<String>,
        lasts: Option<String>,
    }

    impl OidcTables {
        /// The rules, if all of them are valid.
        pub fn read(&self) -> Result<Vec<Rule>> {
            let file = self.file.display();
            let tables = match self.tables.value() {
                None => return Ok(Vec::new()),
                Some(toml::Value::Array(tables)) => tables,
                Some(_) => {
                    let message =
                        format!("invalid settings `{file}`: `oidc` is a list of tables; begin each with [[oidc]]");
                    return Err(Error::new(Kind::Invalid, message));
                }
            };
            let folder = self.file.parent().unwrap_or(Path::new(""));
            let read = |(table, number): (&toml::Value, usize)| {
                let blame = |e: Error| Error::new(e.kind(), format!("invalid settings `{file}`: oidc {number}: {e}"));
                one(table, folder).map_err(blame)
            };
            tables.iter().zip(1..).map(read).collect()
        }
    }

    fn one(table: &toml::Value, folder: &Path) -> Result<Rule> {
        let table: OidcTable = read_table(table)?;
        let names = table.names.unwrap_or_else(|| vec!["*".to_owned()]);
        let names = field("names", names.iter().map(|name| name.parse()).collect::<Result<Vec<_>>>())?;
        let verbs = field("allow", table.allow.iter().map(|verb| verb.parse()).collect::<Result<Vec<Verb>>>())?;
        field("names", check_patterns(&names))?;
        let scope = Scope::new(field("namespace", table.namespace.parse())?, names, VerbSet::of(verbs));
        let scope = field("allow", scope.and_then(|scope| check_scope(&scope).map(|()| scope)))?;
        let lasts = field("lasts", table.lasts.as_deref().map(|text| Lasts::new(parse_duration(text)?)).transpose())?;
        Ok(Rule {
            issuer: field("issuer", table.issuer.parse())?,
            jwks_file: table.jwks_file.map(|path| folder.join(path)),
            audience: field("audience", table.audience.parse())?,
            claims: field("claims", inside(&table.claims).and_then(Claims::new))?,
            scope,
            lasts: lasts.unwrap_or_default(),
        })
    }

    fn inside(claims: &toml::Table) -> Result<BTreeMap<String, Wanted>> {
        claims.iter().map(|(name, value)| Ok((name.clone(), wanted(value)?))).collect()
    }

    fn wanted(value: &toml::Value) -> Result<Wanted> {
        match value {
            toml::Value::String(text) => Wanted::text(text),
            toml::Value::Boolean(flag) => Ok(Wanted::Flag(*flag)),
            toml::Value::Integer(number) => Ok(Wanted::Number(*number)),
            toml::Value::Array(several) if !several.is_empty() => {
                several.iter().map(wanted).collect::<Result<_>>().map(Wanted::AnyOf)
            }
            toml::Value::Table(claims) if !claims.is_empty() => inside(claims).map(Wanted::Inside),
            other => {
                let form = "use a text, in which `*` stands for any characters and `?` for one, a number, true, false, a list of \
                            which one is enough, or a table of further claims";
                Err(Error::invalid("claim", other.type_str(), form))
            }
        }
    }

    fn field<T>(name: &str, parsed: Result<T>) -> Result<T> {
        parsed.map_err(|e| Error::new(e.kind(), format!("field `{name}`: {e}")))
    }
}
