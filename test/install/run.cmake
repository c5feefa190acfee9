# Installs the package into a fresh prefix, then configures, builds and runs the project of this folder against it.
#   cmake -DBUILD_DIR=... -DCOMPILER=... -DFLAGS=... -P run.cmake
set(work ${BUILD_DIR}/install-test)
file(REMOVE_RECURSE ${work})
function(step)
  execute_process(COMMAND ${ARGN} RESULT_VARIABLE code OUTPUT_VARIABLE text ERROR_VARIABLE text)
  if(NOT code EQUAL 0)
    message(FATAL_ERROR "failed: ${ARGN}\n${text}")
  endif()
endfunction()
step(${CMAKE_COMMAND} --install ${BUILD_DIR} --component development --prefix ${work}/prefix)
step(${CMAKE_COMMAND} -S ${CMAKE_CURRENT_LIST_DIR} -B ${work}/build -G Ninja -DCMAKE_PREFIX_PATH=${work}/prefix
  -DCMAKE_CXX_COMPILER=${COMPILER} "-DCMAKE_CXX_FLAGS=${FLAGS}")
step(${CMAKE_COMMAND} --build ${work}/build)
step(${work}/build/outside)
