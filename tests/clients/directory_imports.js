// Lets Node import what was written for bundlers: a directory stands for the index.js in it.

export async function resolve(specifier, context, next) {
  try {
    return await next(specifier, context)
  } catch (error) {
    if (error.code !== 'ERR_UNSUPPORTED_DIR_IMPORT') throw error

    return next(`${specifier}/index.js`, context)
  }
}
