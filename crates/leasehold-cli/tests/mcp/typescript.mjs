// The TypeScript SDK's client, of both generations.
// Arguments: the command, the modules of the client and of its transport, and how it connects: sdk, legacy, auto or pin.
import assert from 'node:assert/strict';

const [binary, clientModule, transportModule, mode] = process.argv.slice(2);
const { Client } = await import(clientModule);
const { StdioClientTransport } = await import(transportModule);
const isAlone = mode === 'auto' || mode === 'pin';
const negotiation = mode === 'pin' ? { pin: '2026-07-28' } : mode;
const options = mode === 'sdk' ? {} : { versionNegotiation: { mode: negotiation } };

async function connect(args, extra) {
    const client = new Client({ name: 'test', version: '1' }, options);
    const env = { ...process.env, ...extra };
    await client.connect(new StdioClientTransport({ command: binary, args, env, stderr: 'ignore' }));
    return client;
}

const plain = await connect(['mcp'], {});
assert.equal(plain.getServerCapabilities().tools.listChanged, false);
if (mode !== 'sdk') {
    assert.equal(plain.getNegotiatedProtocolVersion(), isAlone ? '2026-07-28' : '2025-11-25');
}
const { tools } = await plain.listTools();
const acquire = tools.find(tool => tool.name === 'lease_acquire');
assert.match(acquire.description, isAlone ? /NOT renewed/ : /renewed in the background until/);
const call = (client, name, args) => client.callTool({ name, arguments: args });
const granted = await call(plain, 'lease_acquire', { lease: 'agent', ttl: '60s' });
assert.equal(granted.structuredContent.renewed, !isAlone, JSON.stringify(granted));
const { token } = granted.structuredContent;
const unknown = await call(plain, 'lease_acquire', { name: 'agent' });
assert.ok(unknown.isError && unknown.content[0].text.includes('`lease` (needed)'), JSON.stringify(unknown));

const gated = await connect(['mcp-gate', '--guard', 'tools', '--every-call', '--', binary, 'mcp'], { LEASEHOLD_TOKEN: token });
// So that it knows the schemas of answers, and checks them.
await gated.listTools();
const passed = await call(gated, 'lease_show', { lease: 'agent' });
assert.equal(passed.structuredContent.epoch, 1, JSON.stringify(passed));
const handed = await call(plain, 'lease_hand_off', { lease: 'agent', to: 'other', why: 'test' });
assert.equal(handed.structuredContent.output.epoch, 2, JSON.stringify(handed));
const refused = await call(gated, 'lease_show', { lease: 'agent' });
assert.ok(refused.isError && refused.content[0].text.includes('held=1 seen=2'), JSON.stringify(refused));
const late = await call(plain, 'lease_renew', { token });
assert.ok(late.isError && late.structuredContent.kind === 'lost', JSON.stringify(late));
for (const status of ['released', 'already_released']) {
    const released = await call(plain, 'lease_release', { token: handed.structuredContent.output.token });
    assert.equal(released.structuredContent.status, status, JSON.stringify(released));
}
const again = await call(plain, 'lease_acquire', { lease: 'agent', ttl: '60s' });
assert.equal(again.structuredContent.epoch, 3, JSON.stringify(again));
await gated.close();
await plain.close();
console.log('well');
